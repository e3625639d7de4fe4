//! What must hold whatever users and other processes say: for the tests below and the fuzz targets in `fuzz/`.

use crate::fusion::{MAX_SEGMENTS, Strategy, ends, order_by_name};
use crate::{ALGORITHMS, Choice, Shape};

/// A gradient split strategy, and the sizes of the gradients that it is to cut: how many indices, how many percentages,
/// then these and the sizes, 8 bytes each.
///
/// # Panics
/// If something does not hold.
pub fn strategy(bytes: &[u8]) {
    let [indices, percentages, numbers @ ..] = bytes else { return };
    let numbers: Vec<u64> = numbers.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let (indices, numbers) = numbers.split_at(usize::from(*indices % 16).min(numbers.len()));
    let (percentages, sizes) = numbers.split_at(usize::from(*percentages % 16).min(numbers.len()));
    let indices: Vec<i64> = indices.iter().map(|word| word.cast_signed()).collect();
    let percentages: Vec<f64> = percentages.iter().map(|word| f64::from_bits(*word)).collect();
    let mut strategy = Strategy::default();
    let by_index = strategy.set_by_index(&indices).is_ok();
    let by_size = strategy.set_by_size(&percentages).is_ok();
    match ends(sizes, &strategy) {
        Ok(ends) => {
            assert_eq!(ends.last().copied().unwrap_or(0), sizes.len());
            assert!(ends.is_sorted_by(|a, b| a < b) && ends.first() != Some(&0), "{ends:?}");
            assert!(ends.len() <= MAX_SEGMENTS);
        }
        Err(error) => assert!(by_index && !by_size, "{error}"),
    }
}

/// Names, one a line.
///
/// # Panics
/// If their order depends on how they stood before.
pub fn order(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let names: Vec<&str> = text.lines().collect();
    let reversed: Vec<&str> = names.iter().rev().copied().collect();
    let in_order =
        |names: &[&str]| -> Vec<String> { order_by_name(names).into_iter().map(|at| names[at].to_owned()).collect() };
    assert_eq!(in_order(&names), in_order(&reversed));
}

/// What a group's first member says decides between algorithms.
///
/// # Panics
/// If something does not hold.
pub fn choice(bytes: &[u8]) {
    let Some(choice) = Choice::decode(bytes) else { return };
    assert_eq!(Choice::decode(&choice.encode()).as_ref(), Some(&choice));
    for ranks in [1, 2, 3, 8, 1024] {
        for bytes in [0, 4, 1 << 12, 1 << 33] {
            let shape = Shape::all_reduce(ranks, bytes, 4);
            assert!(choice.select(&shape).applies(&shape));
            for algorithm in ALGORITHMS.iter().filter(|algorithm| algorithm.applies(&shape)) {
                let cost = algorithm.cost(&shape, &choice.constants);
                assert!(cost.is_finite() && cost >= 0.0, "{} costs {cost}", algorithm.name());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostile::drive;

    fn numbers(indices: &[u64], percentages: &[f64], sizes: &[u64]) -> Vec<u8> {
        let count = |len: usize| u8::try_from(len).expect("few");
        let words = indices.iter().copied().chain(percentages.iter().map(|share| share.to_bits()));
        let words = words.chain(sizes.iter().copied()).flat_map(u64::to_le_bytes);
        [count(indices.len()), count(percentages.len())].into_iter().chain(words).collect()
    }

    #[test]
    fn strategies() {
        let sizes: Vec<u64> = (0..20).map(|at| at * 1000).collect();
        let seeds = [
            numbers(&[2, 9, 19], &[], &sizes),
            numbers(&[], &[60.0, 20.0, 20.0], &sizes),
            numbers(&[2, 19], &[96.54, 3.46], &[u64::MAX; 20]),
            numbers(&[], &[], &[1, 2]),
        ];
        drive("strategy", &seeds, strategy);
    }

    #[test]
    fn orders() {
        let seeds = ["grad_9\ngrad_10\ngrad\ngrad_09", "a/b_1\na/b\na/B_2\né_3"];
        drive("order", &seeds.map(|names| names.as_bytes().to_vec()), order);
    }

    #[test]
    fn choices() {
        let forced = Choice { forced: Some("flat"), ..Choice::default() };
        drive("choice", &[Choice::default().encode(), forced.encode()], choice);
    }
}
