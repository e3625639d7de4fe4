//! Python exceptions from errors.

use std::time::Duration;

use foldcast::{CallSite, Cause, Error, Rank, Tag};
use pyo3::prelude::*;
use pyo3::sync::GILOnceCell;
use pyo3::types::PyDict;

static ERRORS: GILOnceCell<Py<PyModule>> = GILOnceCell::new();

/// What an exception carries besides its text; see `foldcast/_errors.py`.
#[derive(Default)]
struct Attributes {
    rank: Option<Rank>,
    op: Option<String>,
    tag: Option<String>,
    group: Option<String>,
    field: Option<String>,
    expected: Option<String>,
    got: Option<String>,
    elapsed: Option<f64>,
}

impl Attributes {
    fn of_call(site: &CallSite) -> Attributes {
        let tag = site.tag.as_ref().map(|tag| match tag {
            Tag::Named(name) => name.to_string(),
            unnamed => unnamed.to_string(),
        });
        Attributes { op: Some(site.op.into()), tag, group: Some(site.group.to_string()), ..Attributes::default() }
    }

    fn into_dict(self, py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("rank", self.rank.map(|rank| rank.0))?;
        dict.set_item("elapsed", self.elapsed)?;
        let texts = [
            ("op", self.op),
            ("tag", self.tag),
            ("group", self.group),
            ("field", self.field),
            ("expected", self.expected),
            ("got", self.got),
        ];
        for (key, value) in texts {
            dict.set_item(key, value)?;
        }
        Ok(dict)
    }
}

/// The exception for an error: its class, its text, and its parts as attributes.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let (class, attributes) = describe(error);
    build(py, class, error.to_string(), attributes).unwrap_or_else(|failed| failed)
}

fn build(py: Python<'_>, class: &str, text: String, attributes: Attributes) -> PyResult<PyErr> {
    let errors = ERRORS.get_or_try_init(py, || py.import("foldcast._errors").map(Bound::unbind))?;
    let class = errors.bind(py).getattr(class)?;
    Ok(PyErr::from_value(class.call_method("about", (text,), Some(&attributes.into_dict(py)?))?))
}

fn describe(error: &Error) -> (&'static str, Attributes) {
    match error {
        Error::InvalidArgument(e) => {
            let of_call = e.site.as_ref().map(Attributes::of_call).unwrap_or_default();
            let rank = e.site.as_ref().map(|site| site.rank);
            let (expected, got) = (Some(e.expected.clone()), Some(e.got.clone()));
            ("InvalidArgumentError", Attributes { rank, field: Some(e.field.clone()), expected, got, ..of_call })
        }
        Error::NotInGroup(e) => {
            let (op, group) = (Some(e.op.into()), Some(e.group.to_string()));
            ("NotInGroupError", Attributes { rank: Some(e.rank), op, group, ..Attributes::default() })
        }
        Error::Mismatch(e) => {
            let (expected, got) = (Some(e.expected.clone()), Some(e.got.clone()));
            let of_call =
                Attributes { rank: Some(e.peer), elapsed: seconds(e.elapsed), ..Attributes::of_call(&e.site) };
            ("MismatchError", Attributes { field: Some(e.field.into()), expected, got, ..of_call })
        }
        Error::RankDied(e) => (
            "RankDiedError",
            Attributes { rank: Some(e.peer), elapsed: seconds(e.elapsed), ..Attributes::of_call(&e.site) },
        ),
        Error::Deadline(e) => (
            "DeadlineError",
            Attributes { rank: e.peers.first().copied(), elapsed: seconds(e.elapsed), ..Attributes::of_call(&e.site) },
        ),
        Error::GroupAborted(e) => (
            "GroupAbortedError",
            Attributes { rank: Some(culprit(&e.cause)), elapsed: seconds(e.elapsed), ..Attributes::of_call(&e.site) },
        ),
        Error::ForkedProcess { .. } => ("ForkedProcessError", Attributes::default()),
        Error::Closed { .. } => ("ClosedError", Attributes::default()),
        Error::Resource(e) => {
            let (expected, got) = (Some(e.wanted.clone()), Some(e.got.clone()));
            ("ResourceError", Attributes { rank: e.rank, expected, got, ..Attributes::default() })
        }
        _ => ("FoldcastError", Attributes::default()),
    }
}

#[allow(clippy::unnecessary_wraps, reason = "every caller needs the option")]
fn seconds(elapsed: Duration) -> Option<f64> {
    Some(elapsed.as_secs_f64())
}

/// The rank that a group's end is about.
fn culprit(cause: &Cause) -> Rank {
    match cause {
        Cause::RankDied { peer, .. } | Cause::Deadline { peer, .. } => *peer,
        Cause::Interrupted { by } | Cause::Requested { by } | Cause::Failed { by } | Cause::Shrunk { by } => *by,
    }
}

/// The exception of a wait for a call that has not ended.
pub(crate) fn still_running(py: Python<'_>, call: &CallSite, elapsed: Duration, limit: Duration) -> PyErr {
    let text = format!(
        "{call}: not ended {:.3} s after its begin; the wait was limited to {:.3} s and the call goes on: wait again, or \
         abort the group",
        elapsed.as_secs_f64(),
        limit.as_secs_f64()
    );
    let attributes = Attributes { elapsed: seconds(elapsed), ..Attributes::of_call(call) };
    build(py, "DeadlineError", text, attributes).unwrap_or_else(|failed| failed)
}
