use std::time::{Duration, Instant};

use types::{Buffers, Reduction};

use crate::case::Case;
use crate::machine::run_delay_ns;
use crate::memory::Aligned;
use crate::pattern::Pattern;

/// Ranks whose collectives are measured, as one of them sees them.
pub trait Ranks {
    /// Why a call failed.
    type Error;

    /// This rank.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// The call that is measured.
    ///
    /// # Errors
    /// Whatever the library says.
    fn call(&mut self, case: &Case, buffers: Buffers<'_>) -> Result<(), Self::Error>;

    /// Memory for an input or an output of so many bytes, at least one. By default it is like that of any program.
    ///
    /// # Errors
    /// Whatever the library says.
    fn memory(&mut self, bytes: usize) -> Result<Aligned, Self::Error> {
        Ok(Aligned::new(bytes))
    }

    /// Returns when every rank is there.
    ///
    /// # Errors
    /// Whatever the library says.
    fn barrier(&mut self) -> Result<(), Self::Error>;

    /// The sum or the largest of the ranks' numbers.
    ///
    /// # Errors
    /// Whatever the library says.
    fn combine(&mut self, value: f64, reduction: Reduction) -> Result<f64, Self::Error>;
}

/// For how long, and how, a case is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// The time for a case in ms; slow cases take up to three times as long.
    pub case_ms: u32,
    /// Into how many batches it is cut, 1 to [`Method::MAX_SAMPLES`]; slow cases have fewer, at least 3.
    pub samples: u32,
    /// Whether the input is written anew before each call, untimed, as by a program that computes it.
    pub dirty: bool,
    /// What the data follow from; the same on all ranks.
    pub seed: u64,
}

impl Method {
    /// The most batches.
    pub const MAX_SAMPLES: u32 = 255;

    /// The most calls in a batch.
    const MAX_CALLS: f64 = 20_000.0;

    /// The same where each is preceded by a barrier.
    const MAX_DIRTY_CALLS: f64 = 2_000.0;
}

impl Default for Method {
    fn default() -> Method {
        Method { case_ms: 400, samples: 15, dirty: false, seed: 0 }
    }
}

/// How the times of the batches are spread, in us a call.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the names say it all")]
pub struct Quantiles {
    pub min: f64,
    pub p10: f64,
    pub p25: f64,
    pub median: f64,
    pub p75: f64,
    pub p90: f64,
    pub max: f64,
}

impl Quantiles {
    fn of(sorted: &[f64]) -> Quantiles {
        let at = |tenths: usize| sorted[(sorted.len() * tenths / 100).min(sorted.len() - 1)];
        Quantiles { min: at(0), p10: at(10), p25: at(25), median: at(50), p75: at(75), p90: at(90), max: at(100) }
    }
}

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The time of a call in us: of the slowest rank, the median over the undisturbed batches.
    pub time_us: f64,
    /// All batches.
    pub quantiles: Quantiles,
    /// Elements, on all ranks and in both checks together, that were not what they must be.
    pub wrong: u64,
    /// Calls in a batch.
    pub calls: u32,
    /// Batches.
    pub batches: u32,
}

/// Measures a case; all ranks get the same figures.
///
/// # Errors
/// The first error of a call.
pub fn measure<R: Ranks + ?Sized>(ranks: &mut R, case: &Case, method: &Method) -> Result<Measured, R::Error> {
    let mut bench = Bench::new(ranks, case, method)?;
    bench.ranks.barrier()?;
    let first = bench.calls(1)?;
    let first = bench.largest(first)?;
    let wrong_at_first = bench.wrong_elements(false)?;
    bench.prepare_for_repetition();
    let warm = bench.calls(if first > 50e3 { 1 } else { 3 })?;
    let estimate = bench.largest(warm)?.max(1e-3);
    let (calls, batches) = amounts(method, estimate);
    let mut samples = Vec::new();
    for _ in 0..batches {
        let before = run_delay_ns();
        let time = bench.batch(calls)?;
        let delay = bench.largest(run_delay_ns() - before)?;
        samples.push((delay, bench.largest(time)?));
    }
    let wrong = wrong_at_first + bench.wrong_elements(case.in_place && !method.dirty)?;
    let (time_us, quantiles) = summarise(&mut samples);
    Ok(Measured { time_us, quantiles, wrong, calls, batches })
}

/// How many calls make a batch, and how many batches there are, if a call takes `estimate` us.
#[allow(clippy::as_conversions, reason = "clamped to what fits")]
fn amounts(method: &Method, estimate: f64) -> (u32, u32) {
    let (budget, samples) = (f64::from(method.case_ms) * 1e3, method.samples.clamp(1, Method::MAX_SAMPLES));
    let most = if method.dirty { Method::MAX_DIRTY_CALLS } else { Method::MAX_CALLS };
    let calls = (budget / f64::from(samples) / estimate).clamp(1.0, most) as u32;
    if estimate * f64::from(calls) * f64::from(samples) <= 3.0 * budget {
        return (calls, samples);
    }
    let fitting = (3.0 * budget / (estimate * f64::from(calls))) as u32;
    (calls, fitting.clamp(3.min(samples), samples))
}

/// The median of that third of the batches that waited least, and the quantiles of all. Samples are (wait, time).
fn summarise(samples: &mut [(f64, f64)]) -> (f64, Quantiles) {
    let sorted = |samples: &[(f64, f64)]| {
        let mut times: Vec<f64> = samples.iter().map(|(_, time)| *time).collect();
        times.sort_by(f64::total_cmp);
        times
    };
    samples.sort_by(|a, b| a.0.total_cmp(&b.0));
    let quiet = sorted(&samples[..samples.len().div_ceil(3)]);
    (quiet[quiet.len() / 2], Quantiles::of(&sorted(samples)))
}

struct Bench<'a, R: ?Sized> {
    ranks: &'a mut R,
    case: Case,
    pattern: Pattern,
    input: Aligned,
    output: Aligned,
    /// What the input is written anew from; empty if it is not.
    source: Aligned,
}

impl<'a, R: Ranks + ?Sized> Bench<'a, R> {
    fn new(ranks: &'a mut R, case: &Case, method: &Method) -> Result<Bench<'a, R>, R::Error> {
        let pattern = Pattern::new(case, ranks.rank(), ranks.size(), method.seed);
        let mut input = if case.in_place { Aligned::new(0) } else { ranks.memory(case.bytes)? };
        let mut output = ranks.memory(case.bytes)?;
        pattern.fill(if case.in_place { output.bytes_mut() } else { input.bytes_mut() });
        let mut source = Aligned::new(if method.dirty { case.bytes } else { 0 });
        pattern.fill(source.bytes_mut());
        Ok(Bench { ranks, case: *case, pattern, input, output, source })
    }

    /// In place, results are the next inputs: of zeros, all results are zeros. Out of place the next results must be
    /// written anew.
    fn prepare_for_repetition(&mut self) {
        const RUBBISH: u8 = 0xa5;
        self.output.bytes_mut().fill(if self.case.in_place { 0 } else { RUBBISH });
    }

    fn call(&mut self) -> Result<(), R::Error> {
        let output = self.output.bytes_mut();
        let buffers = if self.case.in_place {
            Buffers::InPlace(output)
        } else {
            Buffers::Separate { input: self.input.bytes(), output }
        };
        self.ranks.call(&self.case, buffers)
    }

    /// The time of a call in us, over this many.
    fn calls(&mut self, count: u32) -> Result<f64, R::Error> {
        let start = Instant::now();
        for _ in 0..count {
            self.call()?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(count))
    }

    fn dirty_calls(&mut self, count: u32) -> Result<f64, R::Error> {
        let mut total = Duration::ZERO;
        for _ in 0..count {
            let target = if self.case.in_place { &mut self.output } else { &mut self.input };
            target.bytes_mut().copy_from_slice(self.source.bytes());
            self.ranks.barrier()?;
            let start = Instant::now();
            self.call()?;
            total += start.elapsed();
        }
        Ok(total.as_secs_f64() * 1e6 / f64::from(count))
    }

    fn batch(&mut self, count: u32) -> Result<f64, R::Error> {
        self.ranks.barrier()?;
        if self.source.bytes().is_empty() { self.calls(count) } else { self.dirty_calls(count) }
    }

    fn largest(&mut self, value: f64) -> Result<f64, R::Error> {
        self.ranks.combine(value, Reduction::Max)
    }

    /// Wrong elements of the last result, over all ranks. `zeros`: it was a result of zeros.
    #[allow(clippy::as_conversions, reason = "counts far below 2^53")]
    fn wrong_elements(&mut self, zeros: bool) -> Result<u64, R::Error> {
        let output = self.output.bytes();
        let own = if zeros {
            output.chunks(self.case.dtype.size()).filter(|element| element.iter().any(|byte| *byte != 0)).count() as u64
        } else {
            self.pattern.wrong(output)
        };
        Ok(self.ranks.combine(own as f64, Reduction::Sum)? as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Kind;
    use types::DataType;

    /// A job of one rank, whose library returns what `result` makes of the input.
    struct Alone<F> {
        result: F,
        calls: u32,
    }

    impl<F: FnMut(u32, &mut [u8])> Ranks for Alone<F> {
        type Error = String;

        fn rank(&self) -> usize {
            0
        }

        fn size(&self) -> usize {
            1
        }

        fn call(&mut self, _: &Case, mut buffers: Buffers<'_>) -> Result<(), String> {
            self.calls += 1;
            if let Buffers::Separate { input, output } = &mut buffers {
                output.copy_from_slice(input);
            }
            let (Buffers::Separate { output, .. } | Buffers::InPlace(output)) = buffers;
            (self.result)(self.calls, output);
            Ok(())
        }

        fn barrier(&mut self) -> Result<(), String> {
            Ok(())
        }

        fn combine(&mut self, value: f64, _: Reduction) -> Result<f64, String> {
            Ok(value)
        }
    }

    const METHOD: Method = Method { case_ms: 2, samples: 5, dirty: false, seed: 0 };

    fn wrong(in_place: bool, dirty: bool, result: impl FnMut(u32, &mut [u8])) -> u64 {
        let case = Case { bytes: 4000, dtype: DataType::Float32, kind: Kind::AllReduce(Reduction::Sum), in_place };
        let mut ranks = Alone { result, calls: 0 };
        let measured = measure(&mut ranks, &case, &Method { dirty, ..METHOD }).unwrap();
        assert_eq!((measured.batches, measured.quantiles.min > 0.0), (5, true));
        measured.wrong
    }

    #[test]
    fn right_results_are_right_in_every_mode() {
        for in_place in [false, true] {
            for dirty in [false, true] {
                assert_eq!(wrong(in_place, dirty, |_, _| {}), 0, "in place {in_place}, dirty {dirty}");
            }
        }
    }

    #[test]
    fn wrong_results_of_the_first_and_of_later_calls_are_counted_in_every_mode() {
        for in_place in [false, true] {
            for dirty in [false, true] {
                let spoil = |output: &mut [u8]| output[36..40].fill(0x77);
                assert_eq!(
                    wrong(in_place, dirty, |call, output| if call == 1 {
                        spoil(output)
                    }),
                    1
                );
                let later = wrong(in_place, dirty, |call, output| {
                    if call > 4 {
                        spoil(output)
                    }
                });
                assert_eq!(later, 1, "in place {in_place}, dirty {dirty}");
            }
        }
    }

    #[test]
    fn a_library_that_only_once_writes_its_output_is_found_out() {
        let mut first = Vec::new();
        let lazy = wrong(false, false, |call, output| {
            if call == 1 {
                first = output.to_vec();
            } else {
                // Undoes what `Alone` has copied, as if the call had left the rubbish there.
                output.fill(0xa5);
            }
        });
        assert_eq!(lazy, 1000);
    }

    #[test]
    fn batches_fit_the_time() {
        let method = Method { case_ms: 400, samples: 15, ..Method::default() };
        assert_eq!(amounts(&method, 0.1), (20_000, 15));
        assert_eq!(amounts(&Method { dirty: true, ..method }, 0.1), (2_000, 15));
        assert_eq!(amounts(&method, 100.0), (266, 15));
        assert_eq!(amounts(&method, 100_000.0), (1, 12));
        assert_eq!(amounts(&method, 1e9), (1, 3));
        assert_eq!(amounts(&Method { samples: 1, ..method }, 1e9), (1, 1));
    }

    #[test]
    fn the_quietest_third_decides() {
        let mut samples = [(9.0, 1.0), (0.0, 5.0), (1.0, 4.0), (2.0, 6.0), (8.0, 2.0), (7.0, 3.0), (3.0, 9.0)];
        let (time, quantiles) = summarise(&mut samples);
        assert!((time - 5.0).abs() < 1e-9, "median of 4, 5 and 6: {time}");
        assert!((quantiles.min - 1.0).abs() < 1e-9 && (quantiles.max - 9.0).abs() < 1e-9);
        assert!((quantiles.median - 4.0).abs() < 1e-9);
    }
}
