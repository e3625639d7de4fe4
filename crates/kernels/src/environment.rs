use types::DataType;

/// The floating-point settings of the thread: the defaults, while this lives.
///
/// Programs link libraries that set "flush to zero" for the whole thread, and a rounding mode may be changed too. One
/// rank would then get other bits than the next, so a fold of floats runs with the defaults and puts back what it
/// found. Reading the settings costs about a nanosecond, and they are written only if they differ.
pub(crate) struct Environment {
    found: Option<Control>,
}

impl Environment {
    #[inline]
    pub(crate) fn enter(dtype: DataType) -> Environment {
        let float = matches!(dtype, DataType::Float16 | DataType::Bfloat16 | DataType::Float32 | DataType::Float64);
        if !float {
            return Environment { found: None };
        }
        let control = read();
        if control & CONTROL_BITS == DEFAULT {
            return Environment { found: None };
        }
        write(DEFAULT);
        Environment { found: Some(control) }
    }
}

impl Drop for Environment {
    #[inline]
    fn drop(&mut self) {
        if let Some(control) = self.found {
            write(control);
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
type Control = u32;
/// Everything in MXCSR but the sticky exception flags: denormals-are-zero, masks, rounding, flush-to-zero.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const CONTROL_BITS: Control = 0xffc0;
/// All exceptions masked, round to nearest, no flushing.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const DEFAULT: Control = 0x1f80;

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn read() -> Control {
    let mut control = 0;
    // SAFETY: stores MXCSR to a local; every x86-64 processor has it.
    unsafe { core::arch::asm!("stmxcsr [{}]", in(reg) &raw mut control, options(nostack, preserves_flags)) }
    control
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn write(control: Control) {
    // SAFETY: loads MXCSR from a local. The value is the default, or was read before, so no reserved bit is set. The
    // kernels are behind function pointers, so the compiler moves no arithmetic of theirs across this.
    unsafe { core::arch::asm!("ldmxcsr [{}]", in(reg) &raw const control, options(nostack, preserves_flags)) }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
type Control = u64;
/// Rounding, flushing, default-NaN and trap bits of FPCR.
#[cfg(all(target_arch = "aarch64", not(miri)))]
const CONTROL_BITS: Control = u64::MAX;
#[cfg(all(target_arch = "aarch64", not(miri)))]
const DEFAULT: Control = 0;

#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline]
fn read() -> Control {
    let control;
    // SAFETY: reads a register that every aarch64 processor has and every program may read.
    unsafe { core::arch::asm!("mrs {}, fpcr", out(reg) control, options(nomem, nostack, preserves_flags)) }
    control
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
fn write(control: Control) {
    // SAFETY: the value is the default, or was read before.
    unsafe { core::arch::asm!("msr fpcr, {}", in(reg) control, options(nostack, preserves_flags)) }
}

// Elsewhere, and in Miri, which runs no assembly and has the defaults.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
type Control = u32;
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
const CONTROL_BITS: Control = 0;
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
const DEFAULT: Control = 0;
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn read() -> Control {
    DEFAULT
}
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn write(_: Control) {}
