//! Every setting, read once: its variables, type, unit, range and default.
//!
//! A setting is taken from an argument of the call, then from its `FOLDCAST_*` variable, then from the variable of the
//! neighbours that means the same, then from the default. A value that cannot be meant is an error that names the
//! variable, the value and what is allowed. An environment that claims more than one rank is honoured or refused,
//! never taken for a world of one.

use core::time::Duration;
use std::path::PathBuf;

use types::{Error, Product, Rank, Result};

use crate::config::ranks::{Claim, LOCAL_SIZES};
pub(crate) use crate::config::ranks::{MAX_RANKS, RANK_PAIRS};

mod ranks;

/// How long something may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timeout {
    /// What the environment says, else the built-in default.
    #[default]
    Default,
    /// No limit.
    Never,
    /// At most this long.
    After(Duration),
}

/// The longest time that is taken as a number of seconds; beyond it there is no limit. Some 30 years.
const LONGEST_S: f64 = 1e9;

impl Timeout {
    /// From seconds: `None` is the default, infinity is no limit.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the number is zero, negative or not a number.
    pub fn from_seconds(seconds: Option<f64>) -> Result<Timeout> {
        let Some(seconds) = seconds else { return Ok(Timeout::Default) };
        if seconds.is_nan() || seconds <= 0.0 {
            return Err(Error::invalid("timeout", TIMEOUT_ALLOWED, format!("{seconds}")));
        }
        if seconds >= LONGEST_S {
            return Ok(Timeout::Never);
        }
        Ok(Timeout::After(Duration::from_secs_f64(seconds)))
    }

    /// The timeout as one number, and back.
    pub(crate) fn encode(self) -> u64 {
        match self {
            Timeout::Default => 0,
            Timeout::Never => u64::MAX,
            // At least one: zero is the default.
            Timeout::After(limit) => u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX).max(1),
        }
    }

    #[inline]
    pub(crate) fn decode(number: u64) -> Timeout {
        match number {
            0 => Timeout::Default,
            u64::MAX => Timeout::Never,
            nanoseconds => Timeout::After(Duration::from_nanos(nanoseconds)),
        }
    }

    /// The limit, where `default` is what [`Timeout::Default`] stands for.
    pub(crate) fn limit(self, default: Option<Duration>) -> Option<Duration> {
        match self {
            Timeout::Default => default,
            Timeout::Never => None,
            Timeout::After(limit) => Some(limit),
        }
    }
}

const TIMEOUT_ALLOWED: &str = "seconds above 0, inf for no limit, or nothing for the default";

/// Everything that the environment decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This process's rank in the world.
    pub rank: Rank,
    /// Ranks of the world.
    pub size: usize,
    /// This process's rank among those of its host.
    pub local_rank: usize,
    /// What the ranks of one job have in common and no other job has; the user is added where it is used.
    pub job: String,
    /// How long the ranks may take to meet; `None`: no limit. `FOLDCAST_INIT_TIMEOUT`, `HCCL_CONNECT_TIMEOUT`, 120 s.
    pub init_timeout: Option<Duration>,
    /// How long a call may take; `None`: no limit. `FOLDCAST_TIMEOUT`, `HCCL_EXEC_TIMEOUT` (0: no limit), 1,800 s.
    pub timeout: Option<Duration>,
    /// When a wait first complains. `FOLDCAST_WARN_AFTER`, 5 s.
    pub warn_after: Duration,
    /// The product whose limits hold. `FOLDCAST_PRODUCT`, `host`.
    pub product: Product,
    /// How many threads of this process may work on one large call, the calling one included: 1 to
    /// [`MAX_THREADS`](Self::MAX_THREADS). `FOLDCAST_THREADS`; else the cores that this rank has for itself, at least 1: what
    /// the launcher says (`FOLDCAST_CORES`), or its part of the cores that this process may use.
    pub threads: usize,
    /// Where the costs that decide between algorithms are. `FOLDCAST_COSTS`, the user's cache.
    pub costs: CostsFrom,
    /// The algorithm for every allreduce that it can do, in groups whose first member this rank is. `FOLDCAST_ALGO`, the
    /// cheapest.
    pub algorithm: Option<&'static str>,
    /// How many bytes of results that nobody holds any more a front end may keep for the next ones. `FOLDCAST_POOL_BYTES`,
    /// 256 MiB.
    pub pool_bytes: usize,
    /// How much memory that other ranks can read where it is this process may have at most ([`Communicator::empty`]); `None`:
    /// as much as the machine has. `FOLDCAST_ARENA_BYTES`.
    ///
    /// [`Communicator::empty`]: crate::Communicator::empty
    pub arena_bytes: Option<usize>,
    /// The directory into which a rank writes what it has noted of its calls when one fails. `FOLDCAST_DUMP_DIR`, none.
    pub dump_dir: Option<PathBuf>,
}

/// Where the costs that decide between algorithms are. They matter in groups whose first member this rank is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CostsFrom {
    /// In the user's cache, if `foldcast tune` has put them there; else the built-in ones.
    #[default]
    Cache,
    /// The built-in ones.
    BuiltIn,
    /// In this file, if there is one.
    File(PathBuf),
}

impl Config {
    /// More threads for one call are taken for a mistake.
    pub const MAX_THREADS: usize = 64;

    /// Reads the process's environment.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the variable, its value and what is allowed.
    pub fn from_env() -> Result<Config> {
        for name in RANK_PAIRS.iter().flat_map(|(rank, size)| [rank, size]) {
            if let Some(value) = std::env::var_os(name).filter(|value| value.to_str().is_none()) {
                return Err(Error::invalid(*name, "a whole number from 0", format!("{value:?}")));
            }
        }
        Self::read(&|name| std::env::var(name).ok().or_else(|| ranks::of_launcher(name)))
    }

    /// The product that the process's environment chooses.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the variable, its value and what is allowed.
    pub fn product_from_env() -> Result<Product> {
        product(&|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    /// Reads variables from `env`.
    pub(crate) fn read(env: &dyn Fn(&str) -> Option<String>) -> Result<Config> {
        let env = &|name: &str| env(name).filter(|value| !value.is_empty());
        let claim = ranks::claim(env)?;
        let Claim { rank, size, .. } = claim;
        for name in LOCAL_SIZES {
            if let Some(local) = number(env, name)?.filter(|local| *local != size) {
                let expected = format!("{size}, the size of the world: jobs that span hosts are not supported yet");
                return Err(Error::invalid(name, expected, local.to_string()));
            }
        }
        let local_rank = number(env, "LOCAL_RANK")?.unwrap_or(rank);
        if local_rank >= size {
            return Err(Error::invalid("LOCAL_RANK", format!("below {size}"), local_rank.to_string()));
        }
        Ok(Config {
            rank: Rank::from_index(rank),
            size,
            local_rank,
            job: ranks::job(env, claim),
            init_timeout: limit(env, "FOLDCAST_INIT_TIMEOUT", "HCCL_CONNECT_TIMEOUT", 120)?,
            timeout: limit(env, "FOLDCAST_TIMEOUT", "HCCL_EXEC_TIMEOUT", 1800)?,
            warn_after: limit(env, "FOLDCAST_WARN_AFTER", "FOLDCAST_WARN_AFTER", 5)?.unwrap_or(Duration::MAX),
            product: product(env)?,
            threads: threads(env, size)?,
            costs: costs(env)?,
            algorithm: algorithm(env)?,
            pool_bytes: number(env, "FOLDCAST_POOL_BYTES")?.unwrap_or(256 << 20),
            arena_bytes: number(env, "FOLDCAST_ARENA_BYTES")?,
            dump_dir: env("FOLDCAST_DUMP_DIR").map(PathBuf::from),
        })
    }

    /// Where the process's environment says that costs are, and the algorithm that it forces.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the variable, its value and what is allowed.
    pub fn choice_from_env() -> Result<(CostsFrom, Option<&'static str>)> {
        let env = &|name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Ok((costs(env)?, algorithm(env)?))
    }
}

/// Finds variables.
type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

fn product(env: Env<'_>) -> Result<Product> {
    const NAME: &str = "FOLDCAST_PRODUCT";
    let Some(text) = env(NAME) else { return Ok(Product::default()) };
    text.parse().map_err(|_| Error::invalid(NAME, Product::expected(), format!("{text:?}")))
}

fn threads(env: Env<'_>, size: usize) -> Result<usize> {
    const NAME: &str = "FOLDCAST_THREADS";
    if let Some(text) = env(NAME) {
        let threads = text.trim().parse().ok().filter(|threads| (1..=Config::MAX_THREADS).contains(threads));
        let expected = || format!("a whole number from 1 to {}", Config::MAX_THREADS);
        return threads.ok_or_else(|| Error::invalid(NAME, expected(), format!("{text:?}")));
    }
    // By affinity, and by the share of time that a container may have.
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    let own = match number(env, "FOLDCAST_CORES")? {
        Some(share) => share.min(usable),
        None => usable / size,
    };
    Ok(own.clamp(1, Config::MAX_THREADS))
}

fn costs(env: Env<'_>) -> Result<CostsFrom> {
    const NAME: &str = "FOLDCAST_COSTS";
    match env(NAME) {
        None => Ok(CostsFrom::Cache),
        Some(text) if text == "off" => Ok(CostsFrom::BuiltIn),
        // Without a slash it is rather a word that is meant as a switch.
        Some(text) if text.contains('/') => Ok(CostsFrom::File(text.into())),
        Some(text) => Err(Error::invalid(NAME, "the path of a file, with a slash in it, or off", format!("{text:?}"))),
    }
}

fn algorithm(env: Env<'_>) -> Result<Option<&'static str>> {
    const NAME: &str = "FOLDCAST_ALGO";
    let Some(text) = env(NAME) else { return Ok(None) };
    let names = plan::all_reduce_algorithms();
    match names.iter().find(|name| **name == text) {
        Some(name) => Ok(Some(name)),
        None => Err(Error::invalid(NAME, format!("one of {}", names.join(", ")), format!("{text:?}"))),
    }
}

fn number(env: Env<'_>, name: &str) -> Result<Option<usize>> {
    let Some(text) = env(name) else { return Ok(None) };
    match text.trim().parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(Error::invalid(name, "a whole number from 0", format!("{text:?}"))),
    }
}

/// A time limit in seconds from our variable or the neighbours', where 0 means no limit.
fn limit(env: Env<'_>, own: &str, neighbour: &str, default_s: u64) -> Result<Option<Duration>> {
    let (name, text) = match (env(own), env(neighbour)) {
        (Some(text), _) => (own, text),
        (None, Some(text)) => (neighbour, text),
        (None, None) => return Ok(Some(Duration::from_secs(default_s))),
    };
    let seconds = text.trim().parse::<f64>();
    match seconds {
        Ok(0.0) if name != own => Ok(None),
        Ok(seconds) => Timeout::from_seconds(Some(seconds))
            .map(|timeout| timeout.limit(None))
            .map_err(|_| Error::invalid(name, TIMEOUT_ALLOWED, format!("{text:?}"))),
        Err(_) => Err(Error::invalid(name, TIMEOUT_ALLOWED, format!("{text:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn read(variables: &[(&str, &str)]) -> Result<Config> {
        let find = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        Config::read(&find)
    }

    pub(super) fn refusal(variables: &[(&str, &str)]) -> String {
        match read(variables) {
            Err(error @ Error::InvalidArgument(_)) => error.to_string(),
            other => panic!("{variables:?} gave {other:?}"),
        }
    }

    #[test]
    fn an_empty_environment_is_a_world_of_one() {
        let config = read(&[]).unwrap();
        assert_eq!((config.rank, config.size, config.local_rank), (Rank(0), 1, 0));
        assert_eq!(config.timeout, Some(Duration::from_secs(1800)));
        assert_eq!(config.init_timeout, Some(Duration::from_secs(120)));
        assert_eq!(config.warn_after, Duration::from_secs(5));
        assert_eq!(read(&[("RANK", ""), ("WORLD_SIZE", "")]).unwrap().size, 1);
    }

    #[test]
    fn the_product_is_chosen_by_its_name() {
        assert_eq!(read(&[]).unwrap().product, Product::Host);
        assert_eq!(read(&[("FOLDCAST_PRODUCT", "")]).unwrap().product, Product::Host);
        for product in Product::ALL {
            assert_eq!(read(&[("FOLDCAST_PRODUCT", product.name())]).unwrap().product, product);
        }
        let text = refusal(&[("FOLDCAST_PRODUCT", "atlas-900")]);
        assert!(text.contains("FOLDCAST_PRODUCT") && text.contains("\"atlas-900\""), "{text}");
        assert!(Product::ALL.iter().all(|product| text.contains(product.name())), "{text}");
    }

    #[test]
    fn threads_are_what_is_set_or_the_cores_of_a_rank() {
        assert_eq!(read(&[("FOLDCAST_THREADS", "3")]).unwrap().threads, 3);
        for bad in ["0", "-1", "65", "1.5", "all"] {
            let text = refusal(&[("FOLDCAST_THREADS", bad)]);
            assert!(text.contains("FOLDCAST_THREADS") && text.contains(bad) && text.contains("1 to 64"), "{text}");
        }
        let usable = std::thread::available_parallelism().unwrap().get();
        assert_eq!(read(&[]).unwrap().threads, usable.min(64));
        let of = |size: &str| read(&[("RANK", "0"), ("WORLD_SIZE", size)]).unwrap().threads;
        assert_eq!((of("2"), of("4096")), ((usable / 2).clamp(1, 64), 1), "of {usable} cores");
        let told = |cores| read(&[("RANK", "0"), ("WORLD_SIZE", "2"), ("FOLDCAST_CORES", cores)]).unwrap().threads;
        assert_eq!((told("0"), told("1"), told("1000000")), (1, 1, usable.min(64)));
    }

    #[test]
    fn costs_and_algorithm_are_checked() {
        let config = read(&[]).unwrap();
        assert_eq!((config.costs, config.algorithm), (CostsFrom::Cache, None));
        assert_eq!(read(&[("FOLDCAST_COSTS", "off")]).unwrap().costs, CostsFrom::BuiltIn);
        assert_eq!(read(&[("FOLDCAST_COSTS", "./x")]).unwrap().costs, CostsFrom::File("./x".into()));
        for word in ["on", "OFF", "0", "costs.json"] {
            let text = refusal(&[("FOLDCAST_COSTS", word)]);
            assert!(text.contains("FOLDCAST_COSTS") && text.contains(word) && text.contains("or off"), "{text}");
        }
        assert_eq!((config.pool_bytes, read(&[("FOLDCAST_POOL_BYTES", "0")]).unwrap().pool_bytes), (256 << 20, 0));
        assert!(refusal(&[("FOLDCAST_POOL_BYTES", "1G")]).contains("\"1G\""));
        assert_eq!((config.arena_bytes, read(&[("FOLDCAST_ARENA_BYTES", "8")]).unwrap().arena_bytes), (None, Some(8)));
        assert!(refusal(&[("FOLDCAST_ARENA_BYTES", "-1")]).contains("FOLDCAST_ARENA_BYTES"));
        for name in plan::all_reduce_algorithms() {
            assert_eq!(read(&[("FOLDCAST_ALGO", name)]).unwrap().algorithm, Some(name));
        }
        for word in ["ring", "broadcast", "Flat"] {
            let text = refusal(&[("FOLDCAST_ALGO", word)]);
            assert!(text.contains("FOLDCAST_ALGO") && text.contains(word) && text.contains("one_shot"), "{text}");
        }
    }

    #[test]
    fn times_are_checked() {
        let never = read(&[("FOLDCAST_TIMEOUT", "inf"), ("HCCL_CONNECT_TIMEOUT", "7")]).unwrap();
        assert_eq!((never.timeout, never.init_timeout), (None, Some(Duration::from_secs(7))));
        assert_eq!(read(&[("HCCL_EXEC_TIMEOUT", "0")]).unwrap().timeout, None);
        for bad in ["0", "-1", "nan", "soon"] {
            assert!(refusal(&[("FOLDCAST_TIMEOUT", bad)]).contains("FOLDCAST_TIMEOUT"));
        }
        assert_eq!(Timeout::from_seconds(None), Ok(Timeout::Default));
        assert_eq!(Timeout::from_seconds(Some(f64::INFINITY)), Ok(Timeout::Never));
        assert_eq!(Timeout::from_seconds(Some(0.5)), Ok(Timeout::After(Duration::from_millis(500))));
        for bad in [0.0, -0.0, -1.0, f64::NAN, f64::NEG_INFINITY] {
            assert!(Timeout::from_seconds(Some(bad)).is_err(), "{bad}");
        }
        for timeout in [None, Some(f64::INFINITY), Some(1e300), Some(1e-300), Some(0.3), Some(9.9e8)] {
            let timeout = Timeout::from_seconds(timeout).unwrap();
            let expected = if timeout == Timeout::After(Duration::ZERO) {
                Timeout::After(Duration::from_nanos(1))
            } else {
                timeout
            };
            assert_eq!(Timeout::decode(timeout.encode()), expected);
        }
    }

    #[test]
    fn files_are_written_only_where_a_directory_is_given() {
        assert_eq!(read(&[]).expect("a clean environment").dump_dir, None);
        let config = read(&[("FOLDCAST_DUMP_DIR", "/tmp/dumps")]).expect("a directory");
        assert_eq!(config.dump_dir, Some(PathBuf::from("/tmp/dumps")));
    }
}
