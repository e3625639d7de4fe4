//! What must hold whatever bytes another process wrote: for the tests below and the fuzz targets in `fuzz/`.

use crate::{Cause, DataType, Fingerprint, GroupName, MAX_GROUP_NAME_BYTES, Product, Reduction};

/// Bytes of a side line: a fingerprint, or none.
///
/// # Panics
/// If something does not hold.
pub fn fingerprint(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(Fingerprint::MAX_ENCODED_BYTES)];
    let Ok(read) = Fingerprint::decode(bytes) else { return };
    let again = read.encode();
    assert!(again.len() <= bytes.len(), "{read:?} grew");
    assert_eq!(Fingerprint::decode(&again), Ok(read.clone()));
    assert_eq!(Fingerprint::decode(&again).map(|again| again.hash()), Ok(read.hash()));
    let other = Fingerprint { count: crate::Elements(!read.count.0), settings: !read.settings, ..read.clone() };
    assert!(!read.differences(&other).is_empty());
    assert!(read.differences(&read).is_empty());
}

/// Bytes of a group's line for the cause of its end.
///
/// # Panics
/// If something does not hold.
pub fn cause(bytes: &[u8]) {
    let mut line = [0; Cause::ENCODED_BYTES];
    line.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
    let Some(read) = Cause::decode(&line) else { return };
    assert_eq!(Cause::decode(&read.encode()), Some(read.clone()));
    assert!(!read.to_string().is_empty());
}

/// Words that users write.
///
/// # Panics
/// If something does not hold.
pub fn words(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match GroupName::new(&text) {
        Ok(name) => assert!(name.as_str() == text && (1..=MAX_GROUP_NAME_BYTES).contains(&text.len()), "{text:?}"),
        Err(error) => assert!(error.to_string().contains("group"), "{error}"),
    }
    let names = [
        text.parse::<DataType>().map(DataType::name),
        text.parse::<Reduction>().map(Reduction::name),
        text.parse::<Product>().map(Product::name),
    ];
    for name in names {
        match name {
            Ok(name) => assert_eq!(name, text),
            Err(error) => assert!(error.contains(&format!("{text:?}")), "{error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::tests::sample;
    use crate::{Ending, Parts, Rank};
    use hostile::drive;

    #[test]
    fn fingerprints() {
        let plain = sample();
        let full = Fingerprint {
            root: Some(Rank(3)),
            parts: Parts::of(&[1, 2]),
            name: "é".repeat(100).into(),
            ..plain.clone()
        };
        drive("fingerprint", &[plain.encode(), full.encode()], fingerprint);
    }

    #[test]
    fn causes() {
        let endings = [Ending::Exited(-1), Ending::Signalled(9), Ending::Left(1 << 40), Ending::Unknown];
        let mut seeds: Vec<_> =
            endings.map(|ending| Cause::RankDied { peer: Rank(3), ending }.encode().to_vec()).into();
        seeds.push(Cause::Deadline { by: Rank(1), peer: Rank(2) }.encode().to_vec());
        drive("cause", &seeds, cause);
    }

    #[test]
    fn words_of_users() {
        let seeds = ["hccl_world_group", "float32", "bfloat16", "sum", "atlas-a2"];
        drive("words", &seeds.map(|word| word.as_bytes().to_vec()), words);
    }
}
