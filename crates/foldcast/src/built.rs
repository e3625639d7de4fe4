//! How this build of Foldcast was made, and what is in it: for reports of defects, and for whoever wonders what an
//! installed one can do.

use kernels::Level;

/// What [`info`] tells.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// The version of Foldcast.
    pub version: &'static str,
    /// The revision of the sources, with `-modified` behind it if they were changed; `None` where the build was not told
    /// (by the variable `FOLDCAST_REVISION`, which `make release` sets).
    pub revision: Option<&'static str>,
    /// The machines that it is for, such as `x86_64-linux-gnu`.
    pub target: String,
    /// `release`, or `debug`: with the assertions of the latter.
    pub profile: &'static str,
    /// The instruction sets for which there are kernels, the slowest first.
    pub kernels: Vec<&'static str>,
    /// The one in use: the last that this machine's processor has.
    pub kernels_in_use: &'static str,
    /// The collectives.
    pub collectives: Vec<&'static str>,
    /// The algorithms for an allreduce, as `FOLDCAST_ALGO` takes them.
    pub algorithms: Vec<&'static str>,
}

/// How this build was made and what is in it.
#[must_use]
pub fn info() -> Info {
    Info {
        version: env!("CARGO_PKG_VERSION"),
        revision: option_env!("FOLDCAST_REVISION").filter(|revision| !revision.is_empty()),
        target: target(),
        profile: if cfg!(debug_assertions) { "debug" } else { "release" },
        kernels: Level::ALL.into_iter().filter(|level| level.is_built()).map(Level::name).collect(),
        kernels_in_use: kernels::dispatch(),
        collectives: types::OpKind::ALL.map(types::OpKind::name).to_vec(),
        algorithms: plan::all_reduce_algorithms(),
    }
}

fn target() -> String {
    let libc = if cfg!(target_env = "musl") { "musl" } else { "gnu" };
    format!("{}-{}-{libc}", std::env::consts::ARCH, std::env::consts::OS)
}
