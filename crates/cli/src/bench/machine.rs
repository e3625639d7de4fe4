//! What the figures were taken on.

use std::fs;

/// A machine, as far as it matters to who compares figures. Empty or 0 where the system does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Machine {
    pub(super) processor: String,
    /// Cores that this process may use when it is not bound to its share.
    pub(super) cores: usize,
    pub(super) memory_bytes: u64,
    pub(super) kernel: String,
    pub(super) system: String,
}

impl Machine {
    pub(super) fn here() -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let processors = read("/proc/cpuinfo");
        Machine {
            processor: field(&processors, "model name", ':'),
            cores: processors.lines().filter(|line| line.starts_with("processor")).count(),
            memory_bytes: memory(&read("/proc/meminfo")),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            system: field(&read("/etc/os-release"), "PRETTY_NAME", '=').trim_matches('"').to_owned(),
        }
    }
}

fn field(text: &str, name: &str, separator: char) -> String {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(separator));
    value.unwrap_or_default().trim().to_owned()
}

fn memory(meminfo: &str) -> u64 {
    let total = field(meminfo, "MemTotal", ':');
    total.strip_suffix("kB").and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or_default() * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found() {
        assert_eq!(field("processor\t: 0\nmodel name\t: Chip 7: fast\n", "model name", ':'), "Chip 7: fast");
        assert_eq!(field("NAME=x\nPRETTY_NAME=\"A 12\"\n", "PRETTY_NAME", '='), "\"A 12\"");
        assert_eq!(field("nothing", "model name", ':'), "");
        assert_eq!(memory("MemTotal:   2 kB\n"), 2048);
        assert_eq!(memory("MemTotal: ? kB"), 0);
        assert!(Machine::here().cores > 0);
    }
}
