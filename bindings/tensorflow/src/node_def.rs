//! Fields of TensorFlow's messages `NodeDef` and `AttrValue`, which have had the same numbers in every release.

use core::ffi::c_int;

use crate::wire::{self, Field, Malformed, Value};

pub(crate) const NAME: u64 = 1;
pub(crate) const ATTRIBUTE: u64 = 5;

const VALUE_TEXT: u64 = 2;
const VALUE_INTEGER: u64 = 3;
const VALUE_TYPE: u64 = 6;

/// Name and encoded value of an encoded attribute.
pub(crate) fn attribute(entry: &[u8]) -> Result<(&str, &[u8]), Malformed> {
    let (mut name, mut value): (&str, &[u8]) = ("", &[]);
    for field in wire::fields(entry) {
        let field = field?;
        match field.number {
            1 => name = field.text()?,
            2 => value = field.bytes()?,
            _ => {}
        }
    }
    Ok((name, value))
}

/// The value's last field of this number: the one that counts.
fn last(value: &[u8], number: u64) -> Result<Option<Field<'_>>, Malformed> {
    let mut found = None;
    for field in wire::fields(value) {
        let field = field?;
        if field.number == number {
            found = Some(field);
        }
    }
    Ok(found)
}

/// The bytes of the text in an encoded attribute's value.
pub(crate) fn bytes(value: &[u8]) -> Result<&[u8], Malformed> {
    last(value, VALUE_TEXT)?.map_or(Ok(&[]), |field| field.bytes())
}

/// The integer in an encoded attribute's value.
pub(crate) fn integer(value: &[u8]) -> Result<i64, Malformed> {
    match last(value, VALUE_INTEGER)?.map(|field| field.value) {
        None => Ok(0),
        Some(Value::Varint(value)) => Ok(value.cast_signed()),
        Some(_) => Err(Malformed),
    }
}

/// The number of the data type in an encoded attribute's value.
pub(crate) fn data_type(value: &[u8]) -> Result<c_int, Malformed> {
    match last(value, VALUE_TYPE)?.map(|field| field.value) {
        None => Ok(0),
        Some(Value::Varint(value)) => c_int::try_from(value).map_err(|_| Malformed),
        Some(_) => Err(Malformed),
    }
}
