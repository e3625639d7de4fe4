//! The costs that decide between algorithms: measured once on a machine by `foldcast tune`, kept in a file.
//!
//! The file is in the user's cache, under a name made of the processor's model and the number of cores: home directories are
//! shared between machines. A file that is broken, unreadable or of another machine is as good as none; a warning says so.
//! Costs only choose between right ways, so the worst that a wrong file can do is to make calls slower.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};

use plan::{Choice, Constants};
use serde_json::{Value, json};
use types::{Error, Result};

use crate::config::CostsFrom;

/// What the file says that it is.
const FORMAT: &str = "foldcast-costs-1";
/// A file of costs has some 500 bytes.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// What costs are measured for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The processor's model.
    pub cpu: String,
    /// Number of cores that are online; 0 if the system does not say.
    pub cores: usize,
}

impl Machine {
    /// This machine. It is the same in every process on it, whatever cores that process may use.
    #[must_use]
    pub fn here() -> Machine {
        let cpu = File::open("/proc/cpuinfo").ok().and_then(|file| model(BufReader::new(file)));
        let online = fs::read_to_string("/sys/devices/system/cpu/online").ok();
        Machine {
            cpu: cpu.unwrap_or_else(|| std::env::consts::ARCH.into()),
            cores: online.and_then(|list| count(list.trim())).unwrap_or(0),
        }
    }

    fn file_name(&self) -> String {
        let mut name = String::from("costs-");
        for letter in self.cpu.chars().take(80) {
            name.push(if letter.is_ascii_alphanumeric() { letter } else { '-' });
        }
        let _ = write!(name, "-{:08x}-{}.json", types::digest(3, self.cpu.as_bytes()) >> 32, self.cores);
        name
    }
}

/// The processor's model in the text of `/proc/cpuinfo`, of which only the first processor is read.
pub(crate) fn model(text: impl BufRead) -> Option<String> {
    let mut parts = Vec::new();
    for line in text.lines().map_while(io::Result::ok).take_while(|line| !line.is_empty()) {
        let Some((name, value)) = line.split_once(':') else { continue };
        match name.trim() {
            "model name" => return Some(value.trim().into()),
            // Processors of ARM have numbers only.
            "CPU implementer" | "CPU part" | "CPU variant" => parts.push(value.trim().to_owned()),
            _ => {}
        }
    }
    (!parts.is_empty()).then(|| parts.join(" "))
}

/// The number of processors in a list such as `0-3,8`.
pub(crate) fn count(list: &str) -> Option<usize> {
    let range = |part: &str| match part.split_once('-') {
        None => part.parse().ok().map(|_: usize| 1),
        Some((first, last)) => {
            last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?).map(|distance| distance + 1)
        }
    };
    list.split(',').map(range).sum()
}

/// The file of this machine's costs; `None` if costs are not to be read from a file, or nobody says where the user's cache
/// is.
#[must_use]
pub fn path(from: &CostsFrom, machine: &Machine) -> Option<PathBuf> {
    path_in(from, machine, &|name| std::env::var_os(name).map(PathBuf::from))
}

fn path_in(from: &CostsFrom, machine: &Machine, env: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    // By the XDG base directory specification a relative path is to be ignored.
    let absolute = |name: &str| env(name).filter(|path| path.is_absolute());
    match from {
        CostsFrom::BuiltIn => None,
        CostsFrom::File(path) => Some(path.clone()),
        CostsFrom::Cache => {
            let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
            Some(cache.join("foldcast").join(machine.file_name()))
        }
    }
}

/// Where a process's costs come from.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// The costs.
    pub constants: Constants,
    /// The file that they are from; `None` if they are the built-in ones.
    pub file: Option<PathBuf>,
    /// Why the file is not used that was asked for, or that is there.
    pub complaint: Option<String>,
}

/// This machine's costs: from the file, else the built-in ones.
#[must_use]
pub fn load(from: &CostsFrom) -> Costs {
    let built_in = |complaint| Costs { constants: Constants::default(), file: None, complaint };
    let machine = Machine::here();
    let Some(path) = path(from, &machine) else { return built_in(None) };
    let why = match read(&path, &machine) {
        Ok(Some(constants)) => return Costs { constants, file: Some(path), complaint: None },
        Ok(None) if *from == CostsFrom::Cache => return built_in(None),
        Ok(None) => "is not there".to_owned(),
        Err(why) => format!("is of no use ({why})"),
    };
    let advice = "the built-in costs are used; `foldcast tune` makes it anew";
    built_in(Some(format!("the file {} {why}: {advice}", path.display())))
}

/// What decides between algorithms in groups whose first member this process is.
pub(crate) fn choice(from: &CostsFrom, forced: Option<&'static str>) -> Choice {
    let costs = load(from);
    if let Some(complaint) = costs.complaint {
        log::warn!("{complaint}");
    }
    Choice { constants: costs.constants, forced }
}

/// The costs in a file; `None` if there is no file. The error says why they are of no use.
fn read(path: &Path, machine: &Machine) -> core::result::Result<Option<Constants>, String> {
    let metadata = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|error| error.to_string())?,
    };
    // Opening a pipe would wait.
    if !metadata.is_file() {
        return Err("it is no regular file".into());
    }
    let mut text = String::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(|error| error.to_string())?;
    parse(&text, machine).map(Some)
}

pub(crate) fn parse(text: &str, machine: &Machine) -> core::result::Result<Constants, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if value["format"] != FORMAT {
        return Err(format!("its format is {}, not {FORMAT:?}", value["format"]));
    }
    let there = (value["cpu"].as_str(), value["cores"].as_u64());
    if there != (Some(machine.cpu.as_str()), u64::try_from(machine.cores).ok()) {
        let Machine { cpu, cores } = machine;
        return Err(format!("it is for {} cores of {}, and here are {cores} of {cpu:?}", value["cores"], value["cpu"]));
    }
    let mut values = [0.0; Constants::NAMES.len()];
    for (slot, name) in values.iter_mut().zip(Constants::NAMES) {
        *slot = value["constants"][name].as_f64().ok_or_else(|| format!("it has no number {name}"))?;
    }
    Constants::from_values(values).ok_or_else(|| format!("its constants make no sense: {}", value["constants"]))
}

pub(crate) fn print(constants: &Constants, machine: &Machine) -> String {
    let constants: Value =
        Constants::NAMES.iter().zip(constants.values()).map(|(name, value)| (*name, value)).collect();
    let Machine { cpu, cores } = machine;
    format!("{:#}\n", json!({ "format": FORMAT, "cpu": cpu, "cores": cores, "constants": constants }))
}

const ADVICE: &str = "name a file by FOLDCAST_COSTS=PATH, in a directory that can be written";

fn target(from: &CostsFrom, machine: &Machine) -> Result<PathBuf> {
    path(from, machine).ok_or_else(|| {
        let why = "neither XDG_CACHE_HOME nor HOME says where the cache is, or FOLDCAST_COSTS is off";
        Error::resource("a file for the costs", why, ADVICE)
    })
}

fn refused(path: &Path, error: &io::Error) -> Error {
    Error::resource(format!("the file {}", path.display()), error, ADVICE)
}

/// Whether [`store`] will be able to keep costs; makes the directory for them.
///
/// # Errors
/// As [`store`].
pub fn check_store(from: &CostsFrom) -> Result<()> {
    let path = target(from, &Machine::here())?;
    let tried = unfinished(&path).and_then(|part| File::create(&part).and_then(|_| fs::remove_file(&part)));
    tried.map_err(|error| refused(&path, &error))
}

/// Keeps this machine's costs where [`load`] finds them; returns the file. It is there all at once or not at all.
///
/// # Errors
/// [`Error::Resource`] if the file cannot be written, or nobody says where.
pub fn store(constants: &Constants, from: &CostsFrom) -> Result<PathBuf> {
    let machine = Machine::here();
    let path = target(from, &machine)?;
    write(&path, &print(constants, &machine)).map_err(|error| refused(&path, &error))?;
    Ok(path)
}

/// Where the file is written before it gets its name: in the same directory, which this makes, so that the rename is one
/// step; with the process's number, so that two never share it.
fn unfinished(path: &Path) -> io::Result<PathBuf> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    Ok(directory.join(format!(".costs-{}.part", std::process::id())))
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let part = unfinished(path)?;
    let written = File::create(&part).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.and_then(|()| fs::rename(&part, path)).inspect_err(|_| {
        let _ = fs::remove_file(&part);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine { cpu: "Made-up CPU @ 3.0 GHz".into(), cores: 4 }
    }

    /// A directory of the test's own, removed at its end.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Directory {
            let path = std::env::temp_dir().join(format!("foldcast-costs-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Directory(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let directory = Directory::new("round");
        let path = directory.0.join("a/b/costs.json");
        assert_eq!(read(&path, &machine()), Ok(None));
        let constants = Constants { signal_us: 0.123_456_789_012_3, cached_bytes: 1 << 21, ..Constants::default() };
        for _ in 0..2 {
            write(&path, &print(&constants, &machine())).unwrap();
            assert_eq!(read(&path, &machine()), Ok(Some(constants)));
        }
        let left: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn what_is_of_no_use_is_refused_and_says_why() {
        let good = print(&Constants::default(), &machine());
        assert_eq!(parse(&good, &machine()), Ok(Constants::default()));
        let refusal = |text: &str| parse(text, &machine()).expect_err(text);
        assert!(refusal(&good.replace("Made-up", "Another")).contains("Another"));
        assert!(refusal(&good.replace("\"cores\": 4", "\"cores\": 5")).contains("5 cores"));
        assert!(refusal(&good.replace("costs-1", "costs-2")).contains("costs-2"));
        assert!(refusal(&good.replace("signal_us", "signal")).contains("signal_us"));
        assert!(refusal(&good.replace("0.13", "-0.13")).contains("make no sense"));
        assert!(refusal(&good.replace("0.13", "\"x\"")).contains("signal_us"));
        for text in ["", "[]", "null", "{}", "\u{0}", &good[..good.len() / 2]] {
            refusal(text);
        }
        let directory = Directory::new("useless");
        assert!(read(&directory.0, &machine()).unwrap_err().contains("no regular file"));
        fs::write(directory.0.join("bytes"), [0xff, 0xfe]).unwrap();
        read(&directory.0.join("bytes"), &machine()).unwrap_err();
        fs::write(directory.0.join("long"), vec![b' '; 1 << 20]).unwrap();
        read(&directory.0.join("long"), &machine()).unwrap_err();
        // A directory in the place of the file, and a file in the place of the directory.
        write(&directory.0, "x").unwrap_err();
        write(&directory.0.join("bytes/costs.json"), "x").unwrap_err();
    }

    #[test]
    fn the_cache_is_where_the_specification_says() {
        let at = |variables: &'static [(&str, &str)]| {
            let env =
                move |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| PathBuf::from(value));
            path_in(&CostsFrom::Cache, &machine(), &env).map(|path| path.parent().unwrap().to_owned())
        };
        assert_eq!(at(&[("XDG_CACHE_HOME", "/c"), ("HOME", "/h")]), Some("/c/foldcast".into()));
        assert_eq!(at(&[("XDG_CACHE_HOME", "c"), ("HOME", "/h")]), Some("/h/.cache/foldcast".into()));
        assert_eq!(at(&[("HOME", "/h")]), Some("/h/.cache/foldcast".into()));
        assert_eq!(at(&[]), None);
        let file = CostsFrom::File("/f".into());
        assert_eq!(path_in(&file, &machine(), &|_| None), Some("/f".into()));
        assert_eq!(path_in(&CostsFrom::BuiltIn, &machine(), &|_| Some("/h".into())), None);
    }

    #[test]
    fn machines_differ_by_model_and_cores() {
        let here = Machine::here();
        assert!(here.cores > 0 && !here.cpu.is_empty(), "{here:?}");
        let name = machine().file_name();
        assert!(name.starts_with("costs-Made-up-CPU---3-0-GHz-") && name.ends_with("-4.json"), "{name}");
        assert_ne!(name, Machine { cores: 5, ..machine() }.file_name());
        assert_ne!(name, Machine { cpu: "Made-up CPU @ 3.0_GHz".into(), ..machine() }.file_name());
        assert_eq!(model("processor\t: 0\nmodel name\t: A B\n\nmodel name: C\n".as_bytes()), Some("A B".into()));
        let arm = "processor : 0\nCPU implementer : 0x41\nCPU variant : 0x3\nCPU part : 0xd0c\n\n";
        assert_eq!(model(arm.as_bytes()), Some("0x41 0x3 0xd0c".into()));
        assert_eq!(model("".as_bytes()), None);
        assert_eq!(
            (count("0-3,8"), count("0"), count("2-5,7-8"), count("x"), count("5-2")),
            (Some(5), Some(1), Some(6), None, None)
        );
    }
}
