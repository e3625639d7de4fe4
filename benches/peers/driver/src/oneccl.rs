//! oneCCL through its C functions, with an MPI (Intel's) to tell its ranks of each other.

use core::ffi::{c_int, c_void};
use core::ptr;

use bench::{Case, Kind, Ranks};
use libloading::os::unix::Library;
use types::{Buffers, DataType, Reduction};

use crate::Peer;
use crate::mpi::{INTEL_MPI, Mpi, Threads, function, open_library};

const ID_WORDS: usize = 1024;

/// `onecclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId {
    words: [u32; ID_WORDS],
}

type Communicator = *mut c_void;
type AllReduce =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, c_int, Communicator, *mut c_void) -> c_int;

/// oneCCL on processors, with a communicator of all ranks.
pub(crate) struct OneCcl {
    mpi: Mpi<c_int>,
    communicator: Communicator,
    all_reduce: AllReduce,
    destroy: unsafe extern "C" fn(Communicator) -> c_int,
    /// `ONECCL_VERSION_CODE`.
    version: c_int,
    /// Holds the functions' code.
    _library: Library,
}

fn checked(what: &str, code: c_int) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{what} returned {code}")) }
}

impl OneCcl {
    pub(crate) fn open(mpi: &str, path: &str) -> Result<OneCcl, String> {
        let mpi = Mpi::open(&INTEL_MPI, mpi, Threads::Several)?;
        let library = open_library(path)?;
        let mut version = 0;
        // SAFETY: the type is that of onecclGetVersion.
        let ask: unsafe extern "C" fn(*mut c_int) -> c_int = unsafe { function(&library, "onecclGetVersion") }?;
        // SAFETY: the answer has room.
        checked("onecclGetVersion", unsafe { ask(&raw mut version) })?;
        let mut id = UniqueId { words: [0; ID_WORDS] };
        if mpi.rank() == 0 {
            // SAFETY: the type is that of onecclGetUniqueId.
            let make: unsafe extern "C" fn(*mut UniqueId) -> c_int =
                unsafe { function(&library, "onecclGetUniqueId") }?;
            // SAFETY: the identity has the 4,096 bytes that it is to have.
            checked("onecclGetUniqueId", unsafe { make(&raw mut id) })?;
        }
        mpi.share(&mut id.words)?;
        type Init = unsafe extern "C" fn(*mut Communicator, usize, UniqueId, c_int) -> c_int;
        // SAFETY: the type is that of onecclCommInitRank.
        let init: Init = unsafe { function(&library, "onecclCommInitRank") }?;
        let rank = c_int::try_from(mpi.rank()).map_err(|_| "too many ranks")?;
        let mut communicator = ptr::null_mut();
        // SAFETY: the communicator has room, and all ranks have the identity that rank 0 made.
        checked("onecclCommInitRank", unsafe { init(&raw mut communicator, mpi.size(), id, rank) })?;
        Ok(OneCcl {
            mpi,
            communicator,
            // SAFETY: the type is that of onecclAllReduce.
            all_reduce: unsafe { function(&library, "onecclAllReduce") }?,
            // SAFETY: the type is that of onecclCommDestroy.
            destroy: unsafe { function(&library, "onecclCommDestroy") }?,
            version,
            _library: library,
        })
    }
}

fn dtype_code(dtype: DataType) -> Option<c_int> {
    match dtype {
        DataType::Int32 => Some(2),
        DataType::Float16 => Some(6),
        DataType::Float32 => Some(7),
        DataType::Bfloat16 => Some(9),
        _ => None,
    }
}

fn reduction_code(reduction: Reduction) -> c_int {
    match reduction {
        Reduction::Sum => 0,
        Reduction::Prod => 1,
        Reduction::Max => 2,
        Reduction::Min => 3,
    }
}

impl Ranks for OneCcl {
    type Error = String;

    fn rank(&self) -> usize {
        self.mpi.rank()
    }

    fn size(&self) -> usize {
        self.mpi.size()
    }

    #[inline]
    fn call(&mut self, case: &Case, buffers: Buffers<'_>) -> Result<(), String> {
        let Kind::AllReduce(reduction) = case.kind else { return Err("only allreduce is measured".into()) };
        let dtype = dtype_code(case.dtype).ok_or("no such type")?;
        let (input, output) = match buffers {
            // The input is only read, though its type in C says otherwise.
            Buffers::Separate { input, output } => (input.as_ptr().cast_mut().cast(), output.as_mut_ptr().cast()),
            Buffers::InPlace(output) => {
                let output: *mut c_void = output.as_mut_ptr().cast();
                (output, output)
            }
        };
        let reduction = reduction_code(reduction);
        // SAFETY: the communicator is alive, both buffers hold the case's elements of that type, and no stream is needed
        // for memory of the host. The call has ended when it returns.
        checked("onecclAllReduce", unsafe {
            (self.all_reduce)(input, output, case.count(), dtype, reduction, self.communicator, ptr::null_mut())
        })
    }

    fn barrier(&mut self) -> Result<(), String> {
        self.mpi.barrier()
    }

    fn combine(&mut self, value: f64, reduction: Reduction) -> Result<f64, String> {
        self.mpi.combine(value, reduction)
    }
}

impl Peer for OneCcl {
    fn takes(&self, case: &Case) -> bool {
        matches!(case.kind, Kind::AllReduce(_)) && dtype_code(case.dtype).is_some()
    }

    fn version(&self) -> String {
        format!("oneCCL {}.{}.{}", self.version / 10_000, self.version / 100 % 100, self.version % 100)
    }

    fn finish(&mut self) {
        // SAFETY: the communicator is alive, and not used after this.
        unsafe { (self.destroy)(self.communicator) };
        self.mpi.finish();
    }
}
