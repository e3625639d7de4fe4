use core::fmt::Write;

use types::{Bytes, OpKind};

use crate::algorithms::{ALGORITHMS, Algorithm};
use crate::cost::Constants;
use crate::shape::{Plan, Shape, Shares, plan_with, select};
use crate::step::{Sources, Step};

/// How many steps of a plan are printed.
const MAX_STEPS: usize = 40;

/// Which algorithm is chosen for this shape and why, what it moves, and the steps of rank 0.
#[must_use]
pub fn explain(shape: &Shape) -> String {
    let constants = Constants::default();
    let chosen = select(shape);
    let plan = plan_with(chosen, shape, 0);
    let mut text = String::new();
    let mut line = |words: core::fmt::Arguments<'_>| {
        text.write_fmt(words).expect("writing to a String does not fail");
        text.push('\n');
    };
    line(format_args!("{} on {} ranks: {}", call(shape), shape.ranks, chosen.name()));
    line(format_args!("  why: {}", why(shape, chosen, &constants)));
    line(format_args!("  how: {}", chosen.source()));
    line(format_args!("  plan {:016x}: {} steps a rank, {} rounds", plan.id, plan.steps.len(), plan.rounds));
    line(format_args!("  rank 0 {}", Traffic::of(&plan)));
    line(format_args!("candidates"));
    for algorithm in ALGORITHMS {
        if algorithm.applies(shape) {
            let cost = algorithm.cost(shape, &constants);
            line(format_args!("  {:<26}{cost:>12.2} us predicted", algorithm.name()));
        } else {
            line(format_args!("  {:<26}does not apply", algorithm.name()));
        }
    }
    line(format_args!("steps of rank 0"));
    for (index, step) in plan.steps.iter().take(MAX_STEPS).enumerate() {
        line(format_args!("  {index:>3}  {step}"));
    }
    if plan.steps.len() > MAX_STEPS {
        line(format_args!("       and {} more", plan.steps.len() - MAX_STEPS));
    }
    text
}

fn bytes(bytes: usize) -> Bytes {
    Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
}

fn call(shape: &Shape) -> String {
    match shape.kind {
        OpKind::Barrier => shape.kind.to_string(),
        kind => format!(
            "{kind} of {} elements of {} bytes ({}){}",
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
            }
        ),
    }
}

fn why(shape: &Shape, chosen: &dyn Algorithm, constants: &Constants) -> String {
    let others = ALGORITHMS.iter().filter(|other| other.name() != chosen.name() && other.applies(shape));
    let next = others.min_by(|a, b| a.cost(shape, constants).total_cmp(&b.cost(shape, constants)));
    let cost = chosen.cost(shape, constants);
    match next {
        None => format!("no other algorithm applies; predicted {cost:.2} us"),
        Some(next) => {
            let other = next.cost(shape, constants);
            format!("predicted {cost:.2} us; next is {} with {other:.2} us", next.name())
        }
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
                Step::Collect { span, .. } => sum.read += span.len(),
                Step::Keep { .. } | Step::Announce | Step::Meet | Step::Publish { .. } | Step::Await { .. } => {}
            }
        }
        sum
    }
}

impl core::fmt::Display for Traffic {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let [written, read, folded] = [self.written, self.read, self.folded].map(bytes);
        write!(f, "writes {written} for others, reads {read} from others, folds {folded}")
    }
}
