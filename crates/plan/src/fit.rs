//! Constants from measured times.
//!
//! A predicted time is linear in the constants, but for the size up to which data stays in the caches: so for each of a few
//! such sizes there is a least-squares problem, of the relative errors, and the best one is taken. Times alone do not tell
//! all constants apart: between two ranks as many bytes are always copied as are transferred. So what the times do not
//! decide stays near given constants, all scaled alike to the speed of the machine; and none falls far below those, since a
//! cost of nothing would be a fault of the fit and would mislead for shapes that were not measured.

use crate::algorithms::Algorithm;
use crate::choice::algorithm;
use crate::cost::Constants;
use crate::shape::Shape;

/// A measured time.
#[derive(Clone, Debug)]
pub struct Observation {
    /// Name of the algorithm that was run.
    pub algorithm: &'static str,
    /// What it was run for.
    pub shape: Shape,
    /// Time of a call in microseconds.
    pub time_us: f64,
}

impl Observation {
    /// The time that these constants predict, in microseconds; 0 for an algorithm that does not exist.
    #[must_use]
    pub fn predicted_us(&self, constants: &Constants) -> f64 {
        algorithm(self.algorithm).map_or(0.0, |algorithm| algorithm.cost(&self.shape, constants))
    }
}

/// Constants that a time is linear in.
const LINEAR: usize = Constants::NAMES.len() - 1;
/// How much being near the given constants counts beside one observation.
const NEARNESS: f64 = 0.02;
/// No constant falls below this part of the given one, scaled to the machine.
const LEAST_PART: f64 = 0.1;
/// Descents along each constant; the problem has six unknowns and is convex.
const SWEEPS: usize = 2000;

/// The constants that predict these times best, near the given ones where the times do not decide; `None` if there is no
/// usable observation.
#[must_use]
pub fn fit(observations: &[Observation], near: &Constants) -> Option<Constants> {
    let usable = |observation: &&Observation| {
        let time = observation.time_us;
        let known = algorithm(observation.algorithm).is_some_and(|it| it.applies(&observation.shape));
        known && time.is_finite() && time > 0.0
    };
    let observations: Vec<&Observation> = observations.iter().filter(usable).collect();
    if observations.is_empty() {
        return None;
    }
    let candidates = (16..=25).map(|exponent| fit_cached(&observations, near, 1 << exponent));
    let best = candidates.min_by(|(_, a), (_, b)| a.total_cmp(b))?;
    Constants::from_values(best.0.values())
}

/// The best constants for this size of the caches, and their error.
fn fit_cached(observations: &[&Observation], near: &Constants, cached_bytes: usize) -> (Constants, f64) {
    let near = Constants { cached_bytes, ..*near };
    let rows: Vec<[f64; LINEAR]> = observations.iter().map(|observation| row(observation, &near)).collect();
    // In units of the given constants, scaled to the machine: then 1 is "as given" for each of them.
    let mut ratios: Vec<f64> = rows.iter().map(|row| 1.0 / row.iter().sum::<f64>().max(f64::MIN_POSITIVE)).collect();
    ratios.sort_by(f64::total_cmp);
    let scale = ratios[ratios.len() / 2];
    let rows: Vec<[f64; LINEAR]> = rows.iter().map(|row| row.map(|part| part * scale)).collect();
    let mut factors = [1.0; LINEAR];
    let mut errors: Vec<f64> = rows.iter().map(|row| row.iter().sum::<f64>() - 1.0).collect();
    for _ in 0..SWEEPS {
        for at in 0..LINEAR {
            let slope = rows.iter().zip(&errors).map(|(row, error)| row[at] * error).sum::<f64>();
            let slope = slope + NEARNESS * (factors[at] - 1.0);
            let curvature = rows.iter().map(|row| row[at] * row[at]).sum::<f64>() + NEARNESS;
            let step = (factors[at] - slope / curvature).max(LEAST_PART) - factors[at];
            factors[at] += step;
            for (error, row) in errors.iter_mut().zip(&rows) {
                *error += step * row[at];
            }
        }
    }
    let penalty: f64 = factors.iter().map(|factor| NEARNESS * (factor - 1.0) * (factor - 1.0)).sum();
    let error = errors.iter().map(|error| error * error).sum::<f64>() + penalty;
    let mut values = near.values();
    for (value, factor) in values.iter_mut().zip(factors) {
        *value *= factor * scale;
    }
    (Constants::from_values(values).unwrap_or(near), error)
}

/// The parts that the constants have in the predicted time, each as a part of the measured time.
fn row(observation: &Observation, constants: &Constants) -> [f64; LINEAR] {
    let Some(algorithm) = algorithm(observation.algorithm) else { return [0.0; LINEAR] };
    core::array::from_fn(|at| part(algorithm, &observation.shape, constants, at) / observation.time_us)
}

fn part(algorithm: &dyn Algorithm, shape: &Shape, constants: &Constants, at: usize) -> f64 {
    let mut values = [0.0; Constants::NAMES.len()];
    values[at] = constants.values()[at];
    values[LINEAR] = constants.values()[LINEAR];
    Constants::from_values(values).map_or(0.0, |only| algorithm.cost(shape, &only))
}
