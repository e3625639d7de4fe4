//! Rust's number types as elements.

use bytemuck::Pod;
use types::DataType;

/// A Rust type that can be reduced.
pub trait Element: Pod {
    /// The data type that it is.
    const DATA_TYPE: DataType;
}

macro_rules! element {
    ($($rust:ty => $data_type:ident),* $(,)?) => {
        $(impl Element for $rust {
            const DATA_TYPE: DataType = DataType::$data_type;
        })*
    };
}

element! {
    i8 => Int8, i16 => Int16, i32 => Int32, i64 => Int64,
    u8 => Uint8, u16 => Uint16, u32 => Uint32, u64 => Uint64,
    half::f16 => Float16, half::bf16 => Bfloat16, f32 => Float32, f64 => Float64,
}

/// The bytes of a slice of elements.
#[must_use]
pub fn bytes_of<T: Element>(elements: &[T]) -> &[u8] {
    bytemuck::cast_slice(elements)
}

/// The bytes of a slice of elements, to be written.
#[must_use]
pub fn bytes_of_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    bytemuck::cast_slice_mut(elements)
}
