//! An allreduce by CPython's fast calling convention, where arguments come as they stand on the caller's stack.
//!
//! PyO3 makes functions for the stable ABI of CPython 3.7, which get a tuple and a dict made anew for each call: for eight bytes
//! a fifth of the whole. CPython has called functions of the flags `METH_FASTCALL | METH_KEYWORDS` in one way since 3.7, though
//! these names are of its stable ABI only from 3.10 on. What is unusual here (a name that is unknown, given twice, or no literal of
//! the program; an argument too many or too few) goes to PyO3's function, which knows what to say.

use std::ffi::{CString, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{ptr, slice};

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::sync::GILOnceCell;
use pyo3::types::{PyCFunction, PyDict, PyString, PyTuple};

use crate::call::{self, Operands, Site};

/// CPython's flag of this name.
const METH_FASTCALL: c_int = 0x80;

/// The arguments of an allreduce, in their order.
const NAMES: [&str; 6] = ["array", "reduction", "out", "group", "name", "timeout"];

/// How many of them may be given by position.
const POSITIONAL: usize = 2;

/// The names as the literals of a program are: one object for equal strings.
static INTERNED: GILOnceCell<[Py<PyString>; NAMES.len()]> = GILOnceCell::new();

/// How CPython calls a function of these flags: on itself, with so many arguments by position and then those whose names are in
/// the tuple (null for none).
type Entry = unsafe extern "C" fn(
    *mut ffi::PyObject,
    *const *mut ffi::PyObject,
    ffi::Py_ssize_t,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;

/// A function with the arguments of an allreduce.
pub(crate) trait Function {
    /// PyO3's function that does the same.
    fn slow() -> &'static GILOnceCell<Py<PyCFunction>>;

    fn run<'py>(py: Python<'py>, site: &Site, operands: &Operands<'_, 'py>) -> PyResult<Bound<'py, PyAny>>;
}

pub(crate) struct AllReduce;

pub(crate) struct AllReduceAsync;

impl Function for AllReduce {
    fn slow() -> &'static GILOnceCell<Py<PyCFunction>> {
        static SLOW: GILOnceCell<Py<PyCFunction>> = GILOnceCell::new();
        &SLOW
    }

    fn run<'py>(py: Python<'py>, site: &Site, operands: &Operands<'_, 'py>) -> PyResult<Bound<'py, PyAny>> {
        call::run_allreduce(py, site, operands)
    }
}

impl Function for AllReduceAsync {
    fn slow() -> &'static GILOnceCell<Py<PyCFunction>> {
        static SLOW: GILOnceCell<Py<PyCFunction>> = GILOnceCell::new();
        &SLOW
    }

    fn run<'py>(py: Python<'py>, site: &Site, operands: &Operands<'_, 'py>) -> PyResult<Bound<'py, PyAny>> {
        let handle = call::submit_allreduce(py, site, operands)?;
        Ok(Bound::new(py, handle)?.into_any())
    }
}

/// Arguments by their numbers in [`NAMES`]; the first is there.
struct Given<'py> {
    array: Bound<'py, PyAny>,
    others: [Option<Bound<'py, PyAny>>; NAMES.len()],
}

impl<'py> Given<'py> {
    fn run<F: Function>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let [_, reduction, out, group, name, timeout] = self.others.each_ref().map(Option::as_ref);
        let site = Site::new(py, "allreduce", group, name, timeout)?;
        F::run(py, &site, &Operands { array: &self.array, reduction, out })
    }

    /// The usual arguments; `None` for PyO3's function to say what is wrong, if anything is.
    fn usual(arguments: &Arguments<'_, 'py>) -> Option<Given<'py>> {
        let py = arguments.py;
        let interned = INTERNED.get(py)?;
        let mut given = [const { None }; NAMES.len()];
        if arguments.by_position.len() > POSITIONAL {
            return None;
        }
        for (place, value) in given.iter_mut().zip(arguments.by_position) {
            *place = arguments.bound(*value);
        }
        for (at, value) in arguments.by_name.iter().enumerate() {
            let name = arguments.name(at)?;
            let place = &mut given[interned.iter().position(|each| each.as_ptr() == name)?];
            if place.is_some() {
                return None;
            }
            *place = arguments.bound(*value);
        }
        let array = given[0].take()?;
        // To give None is to give nothing.
        let others = given.map(|argument| argument.filter(|value| !value.is_none()));
        Some(Given { array, others })
    }
}

/// Arguments as CPython has them: borrowed references, alive as long as the call; where they come from a dict, as in `f(**d)`, in the
/// first releases of 3.7 only until something changes the dict. So all are taken before anything else happens.
struct Arguments<'a, 'py> {
    py: Python<'py>,
    by_position: &'a [*mut ffi::PyObject],
    by_name: &'a [*mut ffi::PyObject],
    /// A tuple of as many strings as there are arguments by name; null if there is none.
    names: *mut ffi::PyObject,
}

impl<'a, 'py> Arguments<'a, 'py> {
    /// # Safety
    /// These are the arguments of a function that CPython is calling in its fast way.
    unsafe fn new(
        py: Python<'py>,
        values: *const *mut ffi::PyObject,
        by_position: ffi::Py_ssize_t,
        names: *mut ffi::PyObject,
    ) -> Arguments<'a, 'py> {
        let by_name = if names.is_null() {
            0
        } else {
            // SAFETY: not null, so a tuple.
            unsafe { ffi::PyTuple_Size(names) }
        };
        let number = |size: ffi::Py_ssize_t| usize::try_from(size).unwrap_or_default();
        let (by_position, by_name) = (number(by_position), number(by_name));
        let all = if by_position + by_name == 0 {
            &[]
        } else {
            // SAFETY: where there are any, so many references stand there, which nobody changes during the call.
            unsafe { slice::from_raw_parts(values, by_position + by_name) }
        };
        let (by_position, by_name) = all.split_at(by_position);
        Arguments { py, by_position, by_name, names }
    }

    /// The name of the argument with this number among those by name. Owned by the tuple of names, to be compared only.
    fn name(&self, at: usize) -> Option<*mut ffi::PyObject> {
        let at = ffi::Py_ssize_t::try_from(at).ok()?;
        // SAFETY: there are arguments by name, so this is a tuple; beyond its end the answer is null.
        let name = unsafe { ffi::PyTuple_GetItem(self.names, at) };
        (!name.is_null()).then_some(name)
    }

    fn bound(&self, value: *mut ffi::PyObject) -> Option<Bound<'py, PyAny>> {
        // SAFETY: a reference of the caller's that lives until Python code runs, and the GIL is held.
        unsafe { Bound::from_borrowed_ptr_or_opt(self.py, value) }
    }

    /// The same call of PyO3's function.
    fn call_slow(&self, function: &Bound<'py, PyCFunction>) -> PyResult<Bound<'py, PyAny>> {
        let by_position = PyTuple::new(self.py, self.by_position.iter().map(|value| self.bound(*value)))?;
        let by_name = PyDict::new(self.py);
        for (at, value) in self.by_name.iter().enumerate() {
            by_name.set_item(self.name(at).and_then(|name| self.bound(name)), self.bound(*value))?;
        }
        function.call(by_position, Some(&by_name))
    }

    fn call<F: Function>(&self) -> PyResult<Bound<'py, PyAny>> {
        match (Given::usual(self), F::slow().get(self.py)) {
            (Some(given), _) => given.run::<F>(self.py),
            (None, Some(slow)) => self.call_slow(slow.bind(self.py)),
            (None, None) => Err(PyValueError::new_err("the module is not complete")),
        }
    }
}

/// What CPython calls.
///
/// # Safety
/// To be called by CPython, in its fast way, as a function of a module.
unsafe extern "C" fn enter<F: Function>(
    _module: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    by_position: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    let run = |py: Python<'_>| {
        // SAFETY: as the caller promises.
        let arguments = unsafe { Arguments::new(py, values, by_position, names) };
        let outcome = catch_unwind(AssertUnwindSafe(|| arguments.call::<F>())).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic from Rust code");
            Err(PyErr::new::<PanicException, _>(text.to_owned()))
        });
        match outcome {
            Ok(value) => value.into_ptr(),
            Err(error) => {
                error.restore(py);
                ptr::null_mut()
            }
        }
    };
    // SAFETY: the interpreter is there, perhaps about to end, since it calls this. It holds the GIL; this tells PyO3.
    unsafe { Python::with_gil_unchecked(run) }
}

/// Adds to the module the function that does as this one of PyO3's does.
pub(crate) fn add<F: Function>(module: &Bound<'_, PyModule>, slow: Bound<'_, PyCFunction>) -> PyResult<()> {
    let py = module.py();
    let attribute = |name| slow.getattr(name)?.extract::<String>();
    let (name, signature, doc) = (attribute("__name__")?, attribute("__text_signature__")?, attribute("__doc__")?);
    // As CPython wants it, which takes the signature off again.
    let doc = CString::new(format!("{name}{signature}\n--\n\n{doc}"))?;
    INTERNED.get_or_init(py, || NAMES.map(|name| PyString::intern(py, name).unbind()));
    F::slow().get_or_init(py, || slow.unbind());
    let entry: Entry = enter::<F>;
    // SAFETY: both are pointers to functions, and CPython, told by the flags, calls it as what it is.
    let entry = unsafe { core::mem::transmute::<Entry, ffi::PyCFunctionWithKeywords>(entry) };
    let definition = ffi::PyMethodDef {
        ml_name: CString::new(name.clone())?.into_raw(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionWithKeywords: entry },
        ml_flags: METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: doc.into_raw(),
    };
    // CPython reads it as long as there is the function: for ever.
    let definition = ptr::from_mut(Box::leak(Box::new(definition)));
    let module_name = module.name()?;
    // SAFETY: a definition that stays, the module, and its name.
    let made = unsafe { ffi::PyCFunction_NewEx(definition, module.as_ptr(), module_name.as_ptr()) };
    // SAFETY: a new reference, or null with Python's error set.
    let function = unsafe { Bound::from_owned_ptr_or_err(py, made) }?;
    module.add(name.as_str(), function)
}
