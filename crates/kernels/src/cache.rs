//! How large the processor's caches are.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Bytes of the last-level cache that processor 0 shares with others, as the kernel tells them; `None` if it tells of no cache behind
/// the second level: such processors have one of which nothing is said.
#[must_use]
pub fn last_level_cache() -> Option<usize> {
    static FOUND: OnceLock<Option<usize>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // Miri has no /sys.
        let told = if cfg!(miri) { None } else { fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok() };
        let caches = told?.flatten().map(|entry| entry.path());
        let read = |cache: &Path, what| fs::read_to_string(cache.join(what)).ok();
        let is_last = |cache: &PathBuf| read(cache, "level").and_then(|level| level.trim().parse().ok()) >= Some(3);
        caches.filter(is_last).filter_map(|cache| bytes(&read(&cache, "size")?)).max()
    })
}

/// The number in a text such as `32768K`.
fn bytes(text: &str) -> Option<usize> {
    let text = text.trim();
    let (number, unit) = match text.strip_suffix(['K', 'M']) {
        Some(number) => (number, if text.ends_with('K') { 1 << 10 } else { 1 << 20 }),
        None => (text, 1),
    };
    number.parse::<usize>().ok()?.checked_mul(unit).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_the_kernels_units() {
        assert_eq!([bytes("32768K\n"), bytes("48M"), bytes("512")], [Some(32 << 20), Some(48 << 20), Some(512)]);
        assert_eq!([bytes(""), bytes("K"), bytes("-1K"), bytes("0K"), bytes("99999999999999999999K")], [None; 5]);
        assert_eq!(bytes(&format!("{}M", usize::MAX)), None);
    }

    #[test]
    fn a_cache_that_is_told_has_a_plausible_size() {
        assert!(last_level_cache().is_none_or(|bytes| (256 << 10..1 << 40).contains(&bytes)));
    }
}
