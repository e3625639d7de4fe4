//! A process in the role of a rank: does what its standard input says.

use std::io::{BufRead, Write};
use std::sync::mpsc;
use std::time::Duration;

use foldcast::{
    Buffers, CallOptions, Communicator, DataType, Group, InitOptions, OwnedBuffers, Reduction, Result, Timeout,
    bytes_of, bytes_of_mut,
};

use crate::support::MARK;

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{}", line.replace('\n', " ")).unwrap();
    out.flush().unwrap();
}

/// Warnings go to where the test reads them.
struct Logger;

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            say(&format!("log {}", record.args()));
        }
    }

    fn flush(&self) {}
}

struct Owned(Vec<f32>);

impl OwnedBuffers for Owned {
    fn buffers(&mut self) -> Buffers<'_> {
        Buffers::InPlace(bytes_of_mut(&mut self.0))
    }
}

fn sum(group: &Group, count: usize, options: &CallOptions<'_>) -> Result<()> {
    let (input, mut output) = (vec![1.0_f32; count], vec![0.0_f32; count]);
    let buffers = Buffers::Separate { input: bytes_of(&input), output: bytes_of_mut(&mut output) };
    group.all_reduce(DataType::Float32, Reduction::Sum, buffers, options)
}

fn submit(group: &Group, options: &CallOptions<'_>) -> Result<mpsc::Receiver<Result<()>>> {
    let (sender, receiver) = mpsc::channel();
    let done = Box::new(move |result: Result<()>, _: Box<dyn OwnedBuffers>| drop(sender.send(result)));
    group.all_reduce_async(DataType::Float32, Reduction::Sum, Box::new(Owned(vec![1.0; 4])), options, done)?;
    Ok(receiver)
}

fn said(result: Result<()>) -> String {
    result.map_or_else(|error| format!("error {error}"), |()| "done".into())
}

pub(crate) fn main() {
    log::set_logger(&Logger).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let communicator = match Communicator::init(InitOptions::default()) {
        Ok(communicator) => communicator,
        Err(error) => return say(&format!("error {error}")),
    };
    say("met");
    let world = communicator.world();
    let mut submitted = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let options = |name| {
            let timeout = words.get(2).map_or(Timeout::Default, |s| Timeout::from_seconds(s.parse().ok()).unwrap());
            CallOptions { name, timeout, ..CallOptions::default() }
        };
        match words[0] {
            // `sum COUNT [TIMEOUT]`
            "sum" => {
                say(&said(sum(&world, words[1].parse().unwrap(), &options(None))));
            }
            // `steps NUMBER LATE_MS`: so many calls, to each of which this rank comes so late; `named-steps` by name.
            "steps" | "named-steps" => {
                let late = Duration::from_millis(words[2].parse().unwrap());
                let name = (words[0] == "named-steps").then_some("w");
                let mut steps = 0..words[1].parse::<u32>().unwrap();
                let result = steps.try_for_each(|_| {
                    std::thread::sleep(late);
                    sum(&world, 8, &CallOptions { name, ..CallOptions::default() })
                });
                say(&said(result));
            }
            // `named NAME [TIMEOUT]`
            "named" => say(&said(sum(&world, 4, &options(Some(words[1]))))),
            // `submit NAME [TIMEOUT]`
            "submit" => {
                submitted.push(submit(&world, &options(Some(words[1]))).unwrap());
                say("submitted");
            }
            "wait" => say(&said(submitted.remove(0).recv().unwrap())),
            "barrier" => say(&said(world.barrier(&CallOptions::default()))),
            "quit" => break,
            other => panic!("no such command: {other}"),
        }
    }
    communicator.shutdown();
}
