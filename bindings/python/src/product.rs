//! The product whose limits hold in this process: chosen by a call or by the environment.

use std::sync::atomic::{AtomicU8, Ordering};

use foldcast::{Config, DataType, Error, Product, Reduction, Result};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::{call, raise, state};

/// Code of the product that was chosen by a call; [`NOT_CHOSEN`] before. It outlives the communicator.
static CHOSEN: AtomicU8 = AtomicU8::new(NOT_CHOSEN);
const NOT_CHOSEN: u8 = u8::MAX;

/// The product that was chosen by a call.
pub(crate) fn chosen() -> Option<Product> {
    Product::from_code(CHOSEN.load(Ordering::Acquire))
}

fn current() -> Result<Product> {
    match (chosen(), state::current()) {
        (Some(product), _) => Ok(product),
        (None, Some(state)) => Ok(state.communicator.product()),
        (None, None) => Config::product_from_env(),
    }
}

/// Choose the product whose limits hold in this process from now on.
///
/// With a product chosen, ``allreduce`` takes the dtypes and reductions that this product's does, and refuses others at
/// once; in TensorFlow already when the op is made. ``products()`` lists them. Without, everything is taken: the product
/// is ``"host"``, or what the variable ``FOLDCAST_PRODUCT`` says.
///
/// May be called before or after ``init()``. All ranks choose the same product at the same point of their programs: a
/// call in which their products differ is a ``MismatchError`` on all of them. (A call that one rank's product refuses and
/// another's takes leaves the other one waiting, as if the first had not made it.)
///
/// Parameters
/// ----------
/// name : str
///     Such as ``"atlas-a2"``; ``"host"`` for no limits.
///
/// Raises
/// ------
/// InvalidArgumentError
///     There is no product of this name.
#[pyfunction]
pub(crate) fn set_product(py: Python<'_>, name: &Bound<'_, PyAny>) -> PyResult<()> {
    let parsed = call::text("product", name).ok().and_then(|text| text.parse::<Product>().ok());
    let product = parsed
        .ok_or_else(|| raise::exception(py, &Error::invalid("product", Product::expected(), call::written(name))))?;
    CHOSEN.store(product.code(), Ordering::Release);
    if let Some(state) = state::current() {
        state.communicator.set_product(product);
    }
    Ok(())
}

/// The name of the product whose limits hold in this process: ``"host"`` if none was chosen. Never waits.
#[pyfunction]
pub(crate) fn product(py: Python<'_>) -> PyResult<&'static str> {
    current().map(Product::name).map_err(|error| raise::exception(py, &error))
}

/// What each product's ``allreduce`` takes, as ``foldcast products`` prints it.
///
/// Returns
/// -------
/// list of dict
///     One for each product: ``name``, which selects it; ``title``, what the documentation calls it; ``allreduce``,
///     whether it has one; ``dtypes`` and ``reductions``, lists; ``one_host_dtypes``, those dtypes that are for groups
///     inside one host only; ``exceptions``, a dict from reductions to lists of dtypes that they are not for;
///     ``variables``, whether a variable may feed the op in TensorFlow; ``note``.
#[pyfunction]
pub(crate) fn products(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for product in Product::ALL {
        list.append(row(py, product)?)?;
    }
    Ok(list)
}

fn row(py: Python<'_>, product: Product) -> PyResult<Bound<'_, PyDict>> {
    let profile = product.profile();
    let names = |dtypes: &[DataType]| dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>();
    let exceptions = PyDict::new(py);
    for (reduction, dtypes) in profile.exceptions_by_reduction() {
        exceptions.set_item(reduction.name(), names(&dtypes))?;
    }
    let dict = PyDict::new(py);
    dict.set_item("name", profile.name)?;
    dict.set_item("title", profile.title)?;
    dict.set_item("allreduce", product.has_allreduce())?;
    dict.set_item("dtypes", names(profile.dtypes))?;
    dict.set_item("one_host_dtypes", names(profile.one_host))?;
    dict.set_item("reductions", profile.reductions.iter().map(|each| each.name()).collect::<Vec<_>>())?;
    dict.set_item("exceptions", exceptions)?;
    dict.set_item("variables", product.takes_variables())?;
    dict.set_item("note", profile.note)?;
    Ok(dict)
}

/// Why the product does not take this: ``(field, expected, got)``, or None if it does. For a group inside one host.
#[pyfunction]
#[pyo3(name = "_check_product")]
pub(crate) fn check_product(
    py: Python<'_>,
    dtype: &str,
    reduction: &str,
) -> PyResult<Option<(&'static str, String, String)>> {
    let invalid = |field: &str, text: String| raise::exception(py, &Error::invalid(field, text, "another"));
    let product = current().map_err(|error| raise::exception(py, &error))?;
    let dtype = dtype.parse::<DataType>().map_err(|text| invalid("dtype", text))?;
    let reduction = reduction.parse::<Reduction>().map_err(|text| invalid("reduction", text))?;
    let refused = product.check(dtype, reduction, false).err();
    Ok(refused.map(|unsupported| (unsupported.field(), unsupported.expected(), unsupported.got())))
}
