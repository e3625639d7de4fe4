use crate::algorithms::{ALGORITHMS, Algorithm};
use crate::cost::Constants;
use crate::shape::Shape;

/// What the choice between algorithms depends on beside the [`Shape`]. All ranks of a group must choose by the same:
/// the group's first member hands out its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// What the parts of a call cost.
    pub constants: Constants,
    /// Name of the algorithm that is taken for every call that it can do, whatever it costs.
    pub forced: Option<&'static str>,
}

impl Choice {
    /// The algorithm for this shape: the forced one if it applies, else the cheapest.
    ///
    /// # Panics
    /// If `shape.ranks` is 0: for every other shape there is an algorithm.
    #[must_use]
    pub fn select(&self, shape: &Shape) -> &'static dyn Algorithm {
        if let Some(forced) = self.forced_for(shape) {
            return forced;
        }
        ALGORITHMS
            .iter()
            .copied()
            .filter(|algorithm| algorithm.applies(shape))
            .min_by(|a, b| a.cost(shape, &self.constants).total_cmp(&b.cost(shape, &self.constants)))
            .expect("a group has at least one rank, and for each number of ranks one algorithm takes every size")
    }

    /// The forced algorithm, if it can do this call.
    #[must_use]
    pub fn forced_for(&self, shape: &Shape) -> Option<&'static dyn Algorithm> {
        self.forced.and_then(algorithm).filter(|algorithm| algorithm.applies(shape))
    }

    /// Where, over all doublings of an allreduce from 8 B to 256 MiB, the predicted time grows most: the size before, and the
    /// factor.
    #[must_use]
    pub fn largest_step(&self, ranks: usize) -> (usize, f64) {
        let time = |bytes: usize| {
            let shape = Shape::all_reduce(ranks, bytes, 4);
            self.select(&shape).cost(&shape, &self.constants)
        };
        let sizes = (3..28).map(|exponent| 1 << exponent);
        let steps = sizes.map(|bytes| (bytes, time(2 * bytes) / time(bytes)));
        steps.max_by(|(_, a), (_, b)| a.total_cmp(b)).expect("the range has sizes")
    }

    /// The choice as bytes, for the other ranks.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let values = self.constants.values().into_iter().flat_map(|value| value.to_bits().to_le_bytes());
        values.chain(self.forced.unwrap_or_default().bytes()).collect()
    }

    /// The choice that another rank encoded; `None` if it is none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Choice> {
        let mut values = [0.0; Constants::NAMES.len()];
        let (numbers, forced) = bytes.split_at_checked(values.len() * size_of::<u64>())?;
        for (value, number) in values.iter_mut().zip(numbers.chunks_exact(size_of::<u64>())) {
            *value = f64::from_bits(u64::from_le_bytes(number.try_into().ok()?));
        }
        let forced = match forced {
            [] => None,
            name => Some(algorithm(core::str::from_utf8(name).ok()?)?.name()),
        };
        Some(Choice { constants: Constants::from_values(values)?, forced })
    }
}

/// The algorithm of this name.
#[must_use]
pub fn algorithm(name: &str) -> Option<&'static dyn Algorithm> {
    ALGORITHMS.iter().copied().find(|algorithm| algorithm.name() == name)
}

/// Names of the algorithms that can do an allreduce: those that it makes sense to force.
#[must_use]
pub fn all_reduce_algorithms() -> Vec<&'static str> {
    let shapes = [1, 2, 3].map(|ranks| Shape::all_reduce(ranks, 8, 8));
    let shapes = shapes.iter().flat_map(|shape| [shape.clone(), Shape { readable: true, ..shape.clone() }]);
    let shapes: Vec<Shape> = shapes.collect();
    let reduces = |algorithm: &&&dyn Algorithm| shapes.iter().any(|shape| algorithm.applies(shape));
    ALGORITHMS.iter().filter(reduces).map(|algorithm| algorithm.name()).collect()
}
