//! MPI through its C functions.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;

use bench::{Case, Kind, Ranks};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use types::{Buffers, DataType, Reduction};

use crate::Peer;

/// What MPIs differ in: what a communicator, a type or an operation is, and where the predefined ones are.
pub(crate) struct Abi<H> {
    handle: fn(&Library, Name) -> Option<H>,
    /// What stands for the input where the output has it.
    in_place: isize,
}

/// A predefined handle.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    World,
    ErrorsReturn,
    Type(DataType),
    Operation(Reduction),
}

/// Handles are numbers, those of its mpi.h.
pub(crate) const MPICH: Abi<c_int> =
    Abi { handle: |_, name| if name == BFLOAT16 { Some(0x4c00_024c) } else { number(name) }, in_place: -1 };

/// MPICH's numbers, with one exception.
pub(crate) const INTEL_MPI: Abi<c_int> =
    Abi { handle: |_, name| if name == BFLOAT16 { Some(0x4c00_0247) } else { number(name) }, in_place: -1 };

const BFLOAT16: Name = Name::Type(DataType::Bfloat16);

/// Handles are addresses of objects that the library exports.
pub(crate) const OPEN_MPI: Abi<*const c_void> = Abi { handle: address, in_place: 1 };

fn number(name: Name) -> Option<c_int> {
    Some(match name {
        Name::World => 0x4400_0000,
        Name::ErrorsReturn => 0x5400_0001,
        Name::Type(DataType::Float16) => 0x4c00_0246,
        Name::Type(DataType::Float32) => 0x4c00_040a,
        Name::Type(DataType::Float64) => 0x4c00_080b,
        Name::Type(DataType::Int32) => 0x4c00_0439,
        Name::Operation(Reduction::Max) => 0x5800_0001,
        Name::Operation(Reduction::Sum) => 0x5800_0003,
        _ => return None,
    })
}

fn address(library: &Library, name: Name) -> Option<*const c_void> {
    let symbol: &[u8] = match name {
        Name::World => b"ompi_mpi_comm_world\0",
        Name::ErrorsReturn => b"ompi_mpi_errors_return\0",
        Name::Type(DataType::Float16) => b"ompi_mpi_short_float\0",
        Name::Type(DataType::Float32) => b"ompi_mpi_float\0",
        Name::Type(DataType::Float64) => b"ompi_mpi_double\0",
        Name::Type(DataType::Int32) => b"ompi_mpi_int32_t\0",
        Name::Operation(Reduction::Max) => b"ompi_mpi_op_max\0",
        Name::Operation(Reduction::Sum) => b"ompi_mpi_op_sum\0",
        _ => return None,
    };
    // SAFETY: a pointer is asked for, and the symbol is the address of an object: nothing is read through it.
    let found = unsafe { library.get::<*const c_void>(symbol) }.ok()?;
    Some(found.into_raw().cast_const())
}

/// Who will call the library.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Threads {
    One,
    /// Threads of another library that stands on this one.
    Several,
}

type AllReduce<H> = unsafe extern "C" fn(*const c_void, *mut c_void, c_int, H, H, H) -> c_int;

/// An MPI that has been initialised.
pub(crate) struct Mpi<H: 'static> {
    abi: &'static Abi<H>,
    world: H,
    rank: usize,
    size: usize,
    all_reduce: AllReduce<H>,
    barrier: unsafe extern "C" fn(H) -> c_int,
    broadcast: unsafe extern "C" fn(*mut c_void, c_int, H, c_int, H) -> c_int,
    finalize: unsafe extern "C" fn() -> c_int,
    /// Holds the functions' code.
    library: Library,
}

/// Opens a library such that what it loads finds its symbols.
pub(crate) fn open_library(path: &str) -> Result<Library, String> {
    // SAFETY: it is one of the libraries under measurement, whose initialisers may run; it is never closed before the end.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map_err(|error| error.to_string())
}

/// A function of the library.
///
/// # Safety
/// `F` must be the function's type.
pub(crate) unsafe fn function<F: Copy>(library: &Library, name: &str) -> Result<F, String> {
    // SAFETY: the caller's promise.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.map(|symbol| *symbol).map_err(|error| format!("{name}: {error}"))
}

/// An MPI function's result.
fn checked(what: &str, code: c_int) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{what} returned {code}")) }
}

impl<H: Copy> Mpi<H> {
    /// Opens the library and initialises it.
    pub(crate) fn open(abi: &'static Abi<H>, path: &str, threads: Threads) -> Result<Mpi<H>, String> {
        let library = open_library(path)?;
        initialise(&library, threads)?;
        let handle = |name| (abi.handle)(&library, name).ok_or("the library has no MPI_COMM_WORLD");
        let world = handle(Name::World)?;
        type SetHandler<H> = unsafe extern "C" fn(H, H) -> c_int;
        // SAFETY: the type is that of MPI_Comm_set_errhandler.
        let set_handler: SetHandler<H> = unsafe { function(&library, "MPI_Comm_set_errhandler") }?;
        let handler = handle(Name::ErrorsReturn)?;
        // SAFETY: MPI is initialised, and both are predefined handles.
        checked("MPI_Comm_set_errhandler", unsafe { set_handler(world, handler) })?;
        let place = |name| {
            type Ask<H> = unsafe extern "C" fn(H, *mut c_int) -> c_int;
            // SAFETY: the type is that of MPI_Comm_rank and MPI_Comm_size.
            let ask: Ask<H> = unsafe { function(&library, name) }?;
            let mut answer = 0;
            // SAFETY: MPI is initialised; the handle is its world, and the answer has room.
            checked(name, unsafe { ask(world, &raw mut answer) })?;
            usize::try_from(answer).map_err(|_| format!("{name} gave {answer}"))
        };
        Ok(Mpi {
            abi,
            world,
            rank: place("MPI_Comm_rank")?,
            size: place("MPI_Comm_size")?,
            // SAFETY: the type is that of MPI_Allreduce.
            all_reduce: unsafe { function(&library, "MPI_Allreduce") }?,
            // SAFETY: the type is that of MPI_Barrier.
            barrier: unsafe { function(&library, "MPI_Barrier") }?,
            // SAFETY: the type is that of MPI_Bcast.
            broadcast: unsafe { function(&library, "MPI_Bcast") }?,
            // SAFETY: the type is that of MPI_Finalize.
            finalize: unsafe { function(&library, "MPI_Finalize") }?,
            library,
        })
    }

    fn handle(&self, name: Name) -> Option<H> {
        (self.abi.handle)(&self.library, name)
    }

    #[inline]
    fn reduce(&self, dtype: DataType, reduction: Reduction, buffers: Buffers<'_>) -> Result<(), String> {
        let handles = self.handle(Name::Type(dtype)).zip(self.handle(Name::Operation(reduction)));
        let (dtype_handle, operation) = handles.ok_or("no such type or operation")?;
        let (input, output) = match buffers {
            Buffers::Separate { input, output } => (input.as_ptr().cast(), output),
            Buffers::InPlace(output) => (ptr::without_provenance(self.abi.in_place.cast_unsigned()), output),
        };
        let count = c_int::try_from(output.len() / dtype.size()).map_err(|_| "too many elements for MPI")?;
        // SAFETY: MPI is initialised, the handles are predefined ones, both buffers hold `count` elements of that type, and
        // the output is not the input unless MPI_IN_PLACE says so.
        checked("MPI_Allreduce", unsafe {
            (self.all_reduce)(input, output.as_mut_ptr().cast(), count, dtype_handle, operation, self.world)
        })
    }

    /// Gives all ranks what rank 0 has: an array of 32-bit numbers.
    pub(crate) fn share(&self, words: &mut [u32]) -> Result<(), String> {
        let dtype = self.handle(Name::Type(DataType::Int32)).ok_or("no such type")?;
        let count = c_int::try_from(words.len()).map_err(|_| "too many elements for MPI")?;
        // SAFETY: MPI is initialised, the handles are predefined ones, and the buffer holds `count` elements of 32 bits.
        checked("MPI_Bcast", unsafe { (self.broadcast)(words.as_mut_ptr().cast(), count, dtype, 0, self.world) })
    }
}

fn initialise(library: &Library, threads: Threads) -> Result<(), String> {
    type Init = unsafe extern "C" fn(*mut c_int, *mut c_void) -> c_int;
    type InitThread = unsafe extern "C" fn(*mut c_int, *mut c_void, c_int, *mut c_int) -> c_int;
    const MULTIPLE: c_int = 3;
    if threads == Threads::One {
        // SAFETY: the type is that of MPI_Init.
        let init: Init = unsafe { function(library, "MPI_Init") }?;
        // SAFETY: null stands for no arguments since MPI 2.
        return checked("MPI_Init", unsafe { init(ptr::null_mut(), ptr::null_mut()) });
    }
    // SAFETY: the type is that of MPI_Init_thread.
    let init: InitThread = unsafe { function(library, "MPI_Init_thread") }?;
    let mut provided = 0;
    // SAFETY: null stands for no arguments since MPI 2; the answer has room.
    checked("MPI_Init_thread", unsafe { init(ptr::null_mut(), ptr::null_mut(), MULTIPLE, &raw mut provided) })
}

impl<H: Copy> Ranks for Mpi<H> {
    type Error = String;

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    #[inline]
    fn call(&mut self, case: &Case, buffers: Buffers<'_>) -> Result<(), String> {
        match case.kind {
            Kind::AllReduce(reduction) => self.reduce(case.dtype, reduction, buffers),
            Kind::Broadcast(_) => Err("only allreduce is measured".into()),
        }
    }

    fn barrier(&mut self) -> Result<(), String> {
        // SAFETY: MPI is initialised, and the handle is its world.
        checked("MPI_Barrier", unsafe { (self.barrier)(self.world) })
    }

    fn combine(&mut self, value: f64, reduction: Reduction) -> Result<f64, String> {
        let mut bytes = value.to_ne_bytes();
        self.reduce(DataType::Float64, reduction, Buffers::InPlace(&mut bytes))?;
        Ok(f64::from_ne_bytes(bytes))
    }
}

impl<H: Copy> Peer for Mpi<H> {
    fn takes(&self, case: &Case) -> bool {
        let Kind::AllReduce(reduction) = case.kind else { return false };
        self.handle(Name::Type(case.dtype)).is_some() && self.handle(Name::Operation(reduction)).is_some()
    }

    fn version(&self) -> String {
        type Version = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
        /// MPI_MAX_LIBRARY_VERSION_STRING is at most this.
        const ROOM: usize = 16 * 1024;
        // SAFETY: the type is that of MPI_Get_library_version.
        let Ok(ask) = (unsafe { function::<Version>(&self.library, "MPI_Get_library_version") }) else {
            return "an MPI without a version".into();
        };
        let (mut text, mut length) = (vec![0_u8; ROOM], 0);
        // SAFETY: the text has more room than any MPI asks for, and the length has room.
        unsafe { ask(text.as_mut_ptr().cast(), &raw mut length) };
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default().to_string_lossy();
        text.lines().next().unwrap_or_default().chars().take(90).collect()
    }

    fn finish(&mut self) {
        // SAFETY: MPI is initialised, and nothing of it is called after this.
        unsafe { (self.finalize)() };
    }
}
