//! The encoding of protocol buffers, as far as graphs need it: <https://protobuf.dev/programming-guides/encoding/>.
//!
//! What is read may be anything. No length is believed before the bytes are seen to be there, nothing is allocated by a
//! length that was read, and every field read consumes at least one byte.

/// The bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The value of one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Varint(u64),
    Fixed64(&'a [u8]),
    Bytes(&'a [u8]),
    Fixed32(&'a [u8]),
}

/// One field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field<'a> {
    pub(crate) number: u64,
    pub(crate) value: Value<'a>,
    /// The whole field, number included, as it stands in the message.
    pub(crate) raw: &'a [u8],
}

impl<'a> Field<'a> {
    /// The bytes of a field that must be text or a message.
    pub(crate) fn bytes(&self) -> Result<&'a [u8], Malformed> {
        match self.value {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed),
        }
    }

    /// The text of a field that must be text.
    pub(crate) fn text(&self) -> Result<&'a str, Malformed> {
        core::str::from_utf8(self.bytes()?).map_err(|_| Malformed)
    }
}

/// The fields of a message, in order; after an error there are no more.
pub(crate) fn fields(message: &[u8]) -> Fields<'_> {
    Fields { rest: message }
}

/// See [`fields`].
#[derive(Clone)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = take_field(&mut self.rest);
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

fn take_field<'a>(rest: &mut &'a [u8]) -> Result<Field<'a>, Malformed> {
    let whole = *rest;
    let key = take_varint(rest)?;
    let value = match key & 7 {
        0 => Value::Varint(take_varint(rest)?),
        1 => Value::Fixed64(take(rest, 8)?),
        2 => {
            let length = take_varint(rest)?;
            Value::Bytes(take(rest, usize::try_from(length).map_err(|_| Malformed)?)?)
        }
        5 => Value::Fixed32(take(rest, 4)?),
        _ => return Err(Malformed),
    };
    Ok(Field { number: key >> 3, value, raw: &whole[..whole.len() - rest.len()] })
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], Malformed> {
    let (taken, left) = rest.split_at_checked(length).ok_or(Malformed)?;
    *rest = left;
    Ok(taken)
}

fn take_varint(rest: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let byte = take(rest, 1)?[0];
        let part = u64::from(byte & 0x7f);
        if shift == 63 && part > 1 {
            return Err(Malformed);
        }
        value |= part << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Malformed)
}

/// Appends a number.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let low = u8::try_from(value & 0x7f).expect("seven bits fit");
        value >>= 7;
        if value == 0 {
            return out.push(low);
        }
        out.push(low | 0x80);
    }
}

/// Appends a field that is a number.
pub(crate) fn put_number(out: &mut Vec<u8>, number: u64, value: u64) {
    put_varint(out, number << 3);
    put_varint(out, value);
}

/// Appends a field that is text or a message.
pub(crate) fn put_bytes(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    put_varint(out, number << 3 | 2);
    put_varint(out, u64::try_from(bytes.len()).expect("a length fits 64 bits"));
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut message = Vec::new();
            put_number(&mut message, 3, value);
            put_bytes(&mut message, 1000, b"text");
            let read: Vec<_> = fields(&message).map(|field| field.expect("well formed")).collect();
            assert_eq!((read[0].number, read[0].value), (3, Value::Varint(value)));
            assert_eq!((read[1].number, read[1].text()), (1000, Ok("text")));
            assert_eq!([read[0].raw, read[1].raw].concat(), message);
        }
    }

    #[test]
    fn the_examples_of_the_specification() {
        let read = |message| fields(message).collect::<Result<Vec<_>, _>>();
        assert_eq!(read(b"\x08\x96\x01").expect("well formed")[0].value, Value::Varint(150));
        assert_eq!(read(b"\x12\x07testing").expect("well formed")[0].text(), Ok("testing"));
    }

    #[test]
    fn every_cut_and_every_overlong_length_is_an_error() {
        let mut message = Vec::new();
        put_bytes(&mut message, 1, b"abc");
        for cut in 1..message.len() {
            assert_eq!(fields(&message[..cut]).last(), Some(Err(Malformed)));
        }
        let bad: [&[u8]; 5] = [
            b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",     // a length of 2^64-1
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",     // 65 bits
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", // 11 bytes
            b"\x0b",                                             // a group
            b"\x09\x00",
        ];
        for message in bad {
            assert_eq!(fields(message).last(), Some(Err(Malformed)), "{message:?}");
        }
    }
}
