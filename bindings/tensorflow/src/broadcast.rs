//! The op `HcomBroadcast`: a list of tensors goes to the engine as one call, whatever their types. The engine packs the
//! small ones.

use table::{Broadcast, Buffer};

use crate::attributes::{Attributes, Kind, data_type_code};
use crate::call::{Operation, Pair, Submission};
use crate::context::Context;
use crate::status::{Failure, Status};

pub(crate) struct Tensors(Vec<Member>);

/// One tensor of the list.
struct Member {
    pair: Pair,
    /// The table's code of the data type.
    dtype: u32,
}

impl Operation for Tensors {
    const KIND: Kind = Kind::Broadcast;

    fn prepare(context: &Context, attributes: &Attributes) -> Result<Tensors, Failure> {
        let status = Status::new();
        let member = |index| {
            let number = context.output_type(index);
            let dtype = data_type_code(number).ok_or_else(|| {
                Failure::invalid(format!("tensor {index}: TensorFlow's data type number {number} is not supported"))
            })?;
            Ok(Member { pair: Pair::new(context, attributes, index, &status)?, dtype })
        };
        (0..context.inputs()).map(member).collect::<Result<_, _>>().map(Tensors)
    }

    type Memory = Vec<Buffer>;

    fn memory(&self) -> Vec<Buffer> {
        let buffer = |member: &Member| {
            let (input, output, bytes) = member.pair.memory();
            Buffer { dtype: member.dtype, input, output, bytes }
        };
        self.0.iter().map(buffer).collect()
    }

    unsafe fn submit(buffers: Vec<Buffer>, to: &Submission<'_>) {
        let call = Broadcast {
            common: to.common(),
            root: to.attributes.root,
            buffers: buffers.as_ptr(),
            count: buffers.len(),
        };
        // SAFETY: group, tag and list live until this function returns; the tensors, as the caller promises, until the call
        // has ended. Their memory is as `Buffer` asks: each output is a tensor of its own.
        unsafe { (to.table.moves.broadcast)(&call) };
    }
}
