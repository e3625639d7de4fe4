use std::str::FromStr;

/// Sizes in bytes, in the order in which they were asked for, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sizes(pub(super) Vec<usize>);

impl FromStr for Sizes {
    type Err = String;

    /// Reads `8,64,1K,4M..256M`: a range doubles from its first size as far as its last.
    fn from_str(text: &str) -> Result<Sizes, String> {
        let mut sizes = Vec::new();
        for part in text.split(',') {
            match part.split_once("..") {
                Some((first, last)) => {
                    let (first, last) = (size(first)?, size(last)?);
                    if first > last {
                        return Err(format!("the range {part:?} ends before it begins"));
                    }
                    sizes.extend(
                        std::iter::successors(Some(first), |size| size.checked_mul(2)).take_while(|size| *size <= last),
                    );
                }
                None => sizes.push(size(part)?),
            }
        }
        let mut seen = Vec::new();
        sizes.retain(|size| {
            !seen.contains(size) && {
                seen.push(*size);
                true
            }
        });
        Ok(Sizes(sizes))
    }
}

fn size(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        _ => return Err(explain(text)),
    };
    let number: usize = number.parse().map_err(|_| explain(text))?;
    match number.checked_mul(1 << shift) {
        Some(size) if size > 0 => Ok(size),
        Some(_) => Err("a size is at least 1 byte".into()),
        None => Err(format!("the size {text:?} is larger than any memory")),
    }
}

fn explain(text: &str) -> String {
    format!("{text:?} is no size: expected bytes such as 8, 64K, 1M or 2G, or a range such as 8..256M")
}

/// A size as people write it: `8`, `64K`, `1M`, but `1000`.
pub(super) fn short(bytes: usize) -> String {
    for (shift, unit) in [(30, "G"), (20, "M"), (10, "K")] {
        let one = 1_usize << shift;
        if bytes >= one && bytes.is_multiple_of(one) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(text: &str) -> Vec<usize> {
        text.parse::<Sizes>().unwrap().0
    }

    #[test]
    fn lists_and_ranges_mix() {
        assert_eq!(sizes("8,64,1K"), [8, 64, 1024]);
        assert_eq!(sizes("8..64"), [8, 16, 32, 64]);
        assert_eq!(sizes("12..100, 2M,8"), [12, 24, 48, 96, 2 << 20, 8]);
        assert_eq!(sizes("1G,4KiB,7B"), [1 << 30, 4096, 7]);
        assert_eq!(sizes("8,8,4..16"), [8, 4, 16]);
        assert_eq!(sizes("8..256M").len(), 26);
        assert_eq!(sizes("8..8"), [8]);
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "8,", "K", "-8", "8.5", "8k", "8X", "1e3", "..", "8..", "..8", "8...16", "0", "0..8"] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
        assert!("64..8".parse::<Sizes>().unwrap_err().contains("ends before it begins"));
        assert!("99999999999G".parse::<Sizes>().unwrap_err().contains("larger than any memory"));
        assert!("99999999999999999999999".parse::<Sizes>().is_err());
    }

    #[test]
    fn short_texts_lose_nothing() {
        for bytes in [1, 8, 1000, 1024, 65536, 1 << 20, 3 << 20, 1 << 30, (1 << 20) + 4] {
            assert_eq!(sizes(&short(bytes)), [bytes]);
        }
        assert_eq!([short(65536), short(1000), short(256 << 20)], ["64K", "1000", "256M"]);
    }
}
