use std::fs::{self, OpenOptions};
use std::path::Path;

use bench::{Kind, LEAST_LIMIT_BYTES};

use super::options::Request;
use super::sizes::short;

/// What a rank takes beside its buffers: the program, the group's control memory.
const RANK_BYTES: usize = 4 << 20;

/// The most that a group's windows take for each rank; small calls touch a part.
const WINDOW_BYTES: usize = 16 << 20;

/// With more ranks on a core, a call takes as long as the scheduler likes, and the machine does nothing else.
const RANKS_PER_CORE: usize = 32;

/// Finds out what would fail later, or tell nobody anything. `writes`: this process writes the files, or starts the one that
/// does.
pub(super) fn check(request: &Request, ranks: usize, writes: bool) -> Result<(), String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let most = cores.saturating_mul(RANKS_PER_CORE);
    if ranks > most {
        return Err(format!(
            "{ranks} ranks on {cores} cores would mostly wait for a core, and their times would say nothing: ask for {most} or \
             fewer"
        ));
    }
    for case in &request.cases {
        if let Kind::Broadcast(root) = case.kind
            && root.index() >= ranks
        {
            return Err(format!("--root {}: there are {ranks} ranks, counted from 0", root.index()));
        }
    }
    if let Some(available) = available_bytes(&fs::read_to_string("/proc/meminfo").unwrap_or_default()) {
        check_memory(request, ranks, available)?;
    }
    if writes {
        for path in request.json.iter().chain(&request.plots) {
            check_writable(path)?;
        }
    }
    Ok(())
}

fn check_memory(request: &Request, ranks: usize, available: usize) -> Result<(), String> {
    let needed_for = |case: &bench::Case| {
        let limit = if !request.plain && case.bytes >= LEAST_LIMIT_BYTES { case.bytes.saturating_mul(2) } else { 0 };
        let buffers = case.buffer_bytes(request.method.dirty).max(limit);
        let windows = case.bytes.saturating_mul(4).min(WINDOW_BYTES);
        ranks.saturating_mul(buffers.saturating_add(windows).saturating_add(RANK_BYTES))
    };
    let largest = request.cases.iter().max_by_key(|case| needed_for(case));
    match largest.map(|case| (case, needed_for(case))) {
        Some((case, needed)) if needed > available => {
            let word = |bytes: usize| format!("{}.{} GiB", bytes >> 30, ((bytes >> 20) & 1023) * 10 / 1024);
            Err(format!(
                "{ranks} ranks with {} bytes each need {} of memory, buffers and windows together, and {} are available: ask \
                 for smaller sizes or fewer ranks",
                short(case.bytes),
                word(needed),
                word(available)
            ))
        }
        _ => Ok(()),
    }
}

/// What the kernel says can be had without swapping, by /proc/meminfo.
fn available_bytes(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

/// Whether the file can be written, by opening it for writing; what was not there is not there afterwards.
fn check_writable(path: &Path) -> Result<(), String> {
    let explain = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
    let is_new = match fs::metadata(path) {
        Ok(found) if found.is_dir() => return Err(format!("cannot write {}: it is a directory", path.display())),
        // Opening a pipe would wait for its reader.
        Ok(found) if !found.is_file() => return Ok(()),
        Ok(_) => false,
        Err(_) => true,
    };
    OpenOptions::new().append(true).create(true).open(path).map_err(explain)?;
    if is_new {
        fs::remove_file(path).map_err(explain)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read() {
        let text = "MemTotal:       24689764 kB\nMemFree:  1 kB\nMemAvailable:   23012345 kB\nBuffers: 5 kB\n";
        assert_eq!(available_bytes(text), Some(23_012_345 * 1024));
        for text in ["", "MemFree: 3 kB", "MemAvailable: many kB", "MemAvailable: 3"] {
            assert_eq!(available_bytes(text), None);
        }
    }
}
