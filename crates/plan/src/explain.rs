use core::fmt;

use types::{Bytes, OpKind};

use crate::algorithms::{ALGORITHMS, Algorithm};
use crate::choice::Choice;
use crate::shape::{Plan, Shape, Shares, plan_with};
use crate::step::{Sources, Step};

/// How many steps of a plan are printed.
const MAX_STEPS: usize = 40;

/// What an algorithm would take for a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Name of the algorithm.
    pub name: &'static str,
    /// Predicted time in microseconds; `None` if it cannot do the call.
    pub predicted_us: Option<f64>,
}

/// Which algorithm is chosen for a call and why, and what it does. Displays as text.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// Name of the algorithm that is taken.
    pub chosen: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    /// Why it is taken.
    pub why: String,
    /// All algorithms.
    pub candidates: Vec<Candidate>,
    /// The plan of rank 0.
    pub plan: Plan,
}

impl Explanation {
    /// Explains what is chosen for this shape.
    #[must_use]
    pub fn of(shape: &Shape, choice: &Choice) -> Explanation {
        let chosen = choice.select(shape);
        let candidate = |algorithm: &&dyn Algorithm| Candidate {
            name: algorithm.name(),
            predicted_us: algorithm.applies(shape).then(|| algorithm.cost(shape, &choice.constants)),
        };
        Explanation {
            chosen: chosen.name(),
            source: chosen.source(),
            why: why(shape, chosen, choice),
            candidates: ALGORITHMS.iter().map(candidate).collect(),
            plan: plan_with(chosen, shape, 0),
        }
    }

    /// The first steps of rank 0, in words.
    #[must_use]
    pub fn outline(&self) -> Vec<String> {
        self.plan.steps.iter().take(MAX_STEPS).map(ToString::to_string).collect()
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explanation { chosen, source, why, candidates, plan } = self;
        writeln!(f, "{} on {} ranks: {chosen}", call(&plan.shape), plan.shape.ranks)?;
        writeln!(f, "  why: {why}")?;
        writeln!(f, "  how: {source}")?;
        writeln!(f, "  plan {:016x}: {} steps a rank, {} rounds", plan.id, plan.steps.len(), plan.rounds)?;
        writeln!(f, "  rank 0 {}", Traffic::of(plan))?;
        writeln!(f, "candidates")?;
        for Candidate { name, predicted_us } in candidates {
            match predicted_us {
                Some(cost) => writeln!(f, "  {name:<26}{cost:>12.2} us predicted")?,
                None => writeln!(f, "  {name:<26}does not apply")?,
            }
        }
        writeln!(f, "steps of rank 0")?;
        for (index, step) in self.outline().iter().enumerate() {
            writeln!(f, "  {index:>3}  {step}")?;
        }
        match plan.steps.len().saturating_sub(MAX_STEPS) {
            0 => Ok(()),
            more => writeln!(f, "       and {more} more"),
        }
    }
}

/// Which algorithm is chosen for this shape by the default constants and why, what it moves, and the steps of rank 0.
#[must_use]
pub fn explain(shape: &Shape) -> String {
    Explanation::of(shape, &Choice::default()).to_string()
}

fn bytes(bytes: usize) -> Bytes {
    Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
}

fn call(shape: &Shape) -> String {
    match shape.kind {
        OpKind::Barrier => shape.kind.to_string(),
        kind => format!(
            "{kind} of {} elements of {} bytes ({}){}{}",
            shape.bytes / shape.element,
            shape.element,
            bytes(shape.bytes),
            match &shape.shares {
                Shares::All => String::new(),
                Shares::Root(root) => format!(" from rank {root}"),
                Shares::Pieces(pieces) => {
                    let (least, most) = (pieces.iter().min(), pieces.iter().max());
                    let size = |piece: Option<&usize>| bytes(piece.copied().unwrap_or_default());
                    format!(" in pieces of {} to {}", size(least), size(most))
                }
            },
            if shape.readable { " in memory that all ranks can read" } else { "" },
        ),
    }
}

fn why(shape: &Shape, chosen: &dyn Algorithm, choice: &Choice) -> String {
    let cost = |algorithm: &dyn Algorithm| algorithm.cost(shape, &choice.constants);
    let time = cost(chosen);
    if choice.forced_for(shape).is_some() {
        return format!("it is forced; predicted {time:.2} us");
    }
    let others = ALGORITHMS.iter().filter(|other| other.name() != chosen.name() && other.applies(shape));
    let next = others.min_by(|a, b| cost(**a).total_cmp(&cost(**b)));
    let why = match next {
        None => format!("no other algorithm applies; predicted {time:.2} us"),
        Some(next) => format!("predicted {time:.2} us; next is {} with {:.2} us", next.name(), cost(*next)),
    };
    match choice.forced {
        Some(forced) => format!("{forced}, which is forced, cannot do this call; {why}"),
        None => why,
    }
}

/// What one rank moves in one call.
#[derive(Default)]
struct Traffic {
    /// Bytes written to shared memory.
    written: usize,
    /// Bytes read from shared memory.
    read: usize,
    /// Bytes that go into folds, own input included.
    folded: usize,
}

impl Traffic {
    fn of(plan: &Plan) -> Traffic {
        let mut sum = Traffic::default();
        let ranks = plan.shape.ranks;
        for step in &plan.steps {
            match step {
                Step::Stage { span, .. } => sum.written += span.len(),
                Step::Fold { span, sources, also } => {
                    if *sources != Sources::Own {
                        sum.read += span.len() * (ranks - 1);
                        sum.folded += span.len() * ranks;
                    }
                    sum.written += also.map_or(0, |_| span.len());
                }
                Step::FoldAndStage { span, stage, .. } => {
                    sum.read += span.len();
                    sum.folded += span.len() * 2;
                    sum.written += stage.as_ref().map_or(0, |(staged, _)| staged.len());
                }
                Step::Collect { span, .. } | Step::Take { span, .. } => sum.read += span.len(),
                Step::Keep { .. }
                | Step::Offer
                | Step::Announce
                | Step::Meet
                | Step::Publish { .. }
                | Step::Await { .. } => {}
            }
        }
        sum
    }
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [written, read, folded] = [self.written, self.read, self.folded].map(bytes);
        write!(f, "writes {written} for others, reads {read} from others, folds {folded}")
    }
}
