use crate::shape::{Shape, select};

/// Which algorithm was chosen for this shape, and why.
#[must_use]
pub fn explain(shape: &Shape) -> String {
    select(shape).name().to_owned()
}
