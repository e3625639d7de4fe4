//! The op `HcomAllReduce`: one tensor in, one out.

use table::Call;

use crate::attributes::{Attributes, Kind};
use crate::call::{Operation, Pair, Submission};
use crate::context::Context;
use crate::status::{Failure, Status};

pub(crate) struct Single(Pair);

impl Operation for Single {
    const KIND: Kind = Kind::AllReduce;

    fn prepare(context: &Context, attributes: &Attributes) -> Result<Single, Failure> {
        Pair::new(context, attributes, 0, &Status::new()).map(Single)
    }

    type Memory = (*const u8, *mut u8, u64);

    fn memory(&self) -> Self::Memory {
        self.0.memory()
    }

    unsafe fn submit((input, output, bytes): Self::Memory, to: &Submission<'_>) {
        let call = Call {
            common: to.common(),
            dtype: to.attributes.dtype,
            reduction: to.attributes.reduction,
            input,
            output,
            bytes,
        };
        // SAFETY: group and tag live until this function returns; the pair, as the caller promises, until the call has
        // ended, and its memory is as `Call` asks.
        unsafe { (to.table.submit)(&call) };
    }
}
