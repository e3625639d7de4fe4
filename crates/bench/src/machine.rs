use std::fs;

/// How long this process's threads have waited on a run queue, in ns: how much other programs got in the way. 0 where the
/// system does not say.
#[must_use]
pub fn run_delay_ns() -> f64 {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return 0.0 };
    let delay = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').nth(1)?.parse::<f64>().ok()
    };
    tasks.flatten().filter_map(delay).sum()
}
