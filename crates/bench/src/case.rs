use core::fmt;
use core::str::FromStr;

use types::{DataType, Rank, Reduction};

use crate::method::Measured;

/// What is done in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Every rank gets all ranks' elements, combined.
    AllReduce(Reduction),
    /// Every rank gets this rank's elements.
    Broadcast(Rank),
}

impl Kind {
    /// The collective's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::AllReduce(_) => "allreduce",
            Kind::Broadcast(_) => "broadcast",
        }
    }

    /// The reduction's name, or `none`.
    #[must_use]
    pub const fn reduction_name(self) -> &'static str {
        match self {
            Kind::AllReduce(reduction) => reduction.name(),
            Kind::Broadcast(_) => "none",
        }
    }

    /// Bus bandwidth by algorithm bandwidth on `ranks` ranks, as the field defines it: bytes that must cross a rank's
    /// link for each byte of the call.
    #[must_use]
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let ranks = f64::from(u32::try_from(ranks).unwrap_or(u32::MAX));
        match self {
            Kind::AllReduce(_) => 2.0 * (ranks - 1.0) / ranks,
            Kind::Broadcast(_) => 1.0,
        }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Case {
    /// Size of the buffer in bytes: a multiple of the element's, more than 0.
    pub bytes: usize,
    /// Type of the elements.
    pub dtype: DataType,
    /// What is done.
    pub kind: Kind,
    /// Whether input and output are one buffer.
    pub in_place: bool,
}

impl Case {
    /// `in` or `out`.
    #[must_use]
    pub const fn mode(&self) -> &'static str {
        if self.in_place { "in" } else { "out" }
    }

    /// Number of elements.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.bytes / self.dtype.size()
    }

    /// Bytes of buffers that a rank needs for it, a copy of the input included if that is written anew before each call.
    #[must_use]
    pub const fn buffer_bytes(&self, dirty: bool) -> usize {
        let buffers = if self.in_place { 1 } else { 2 };
        self.bytes.saturating_mul(if dirty { buffers + 1 } else { buffers })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}", self.bytes, short_name(self.dtype), self.kind.reduction_name(), self.mode())
    }
}

/// The short name of a data type in cases and plain lines, such as `f32` and `bf16`.
#[must_use]
pub const fn short_name(dtype: DataType) -> &'static str {
    match dtype {
        DataType::Int8 => "i8",
        DataType::Int16 => "i16",
        DataType::Int32 => "i32",
        DataType::Int64 => "i64",
        DataType::Uint8 => "u8",
        DataType::Uint16 => "u16",
        DataType::Uint32 => "u32",
        DataType::Uint64 => "u64",
        DataType::Float16 => "f16",
        DataType::Bfloat16 => "bf16",
        DataType::Float32 => "f32",
        DataType::Float64 => "f64",
    }
}

impl FromStr for Case {
    type Err = String;

    /// Reads `bytes:dtype:op:mode`, an allreduce.
    fn from_str(text: &str) -> Result<Case, String> {
        let fields: Vec<_> = text.split(':').collect();
        let &[bytes, dtype, reduction, mode] = fields.as_slice() else {
            return Err(format!("case {text:?} is not bytes:dtype:op:mode, such as 8:f32:sum:out"));
        };
        let explain = |problem: String| format!("case {text:?}: {problem}");
        let dtype = match DataType::ALL.into_iter().find(|each| short_name(*each) == dtype) {
            Some(dtype) => dtype,
            None => dtype.parse().map_err(explain)?,
        };
        let reduction = reduction.parse().map_err(explain)?;
        let in_place = match mode {
            "in" => true,
            "out" => false,
            _ => return Err(explain(format!("mode {mode:?} is neither in nor out"))),
        };
        let bytes: usize = bytes.parse().map_err(|_| explain(format!("{bytes:?} is no number of bytes")))?;
        if bytes == 0 || !bytes.is_multiple_of(dtype.size()) {
            let size = dtype.size();
            return Err(explain(format!("{bytes} bytes are no whole number of {dtype} elements ({size} bytes each)")));
        }
        Ok(Case { bytes, dtype, kind: Kind::AllReduce(reduction), in_place })
    }
}

/// The line that a driver of many benchmarks reads: `size_bytes dtype p time_us op mode ok`, and after that what people may
/// want to know.
#[must_use]
pub fn plain_line(case: &Case, ranks: usize, measured: &Measured) -> String {
    format!(
        "{} {} {ranks} {:.3} {} {} {} med={:.3} min={:.3} it={} s={}",
        case.bytes,
        short_name(case.dtype),
        measured.time_us,
        case.kind.reduction_name(),
        case.mode(),
        if measured.wrong == 0 { "ok" } else { "WRONG" },
        measured.quantiles.median,
        measured.quantiles.min,
        measured.calls,
        measured.batches,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_round_trip() {
        for text in ["8:f32:sum:out", "65536:bf16:max:in", "3:u8:prod:out", "16:f64:min:in"] {
            assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
        }
        let long: Case = "4:float32:sum:in".parse().unwrap();
        assert_eq!(long.to_string(), "4:f32:sum:in");
        assert_eq!((long.count(), long.buffer_bytes(false), long.buffer_bytes(true)), (1, 4, 8));
    }

    #[test]
    fn what_is_no_case_is_refused_with_the_reason() {
        let refused = [
            ("8:f32:sum", "bytes:dtype:op:mode"),
            ("8:f32:sum:out:x", "bytes:dtype:op:mode"),
            ("8:f8:sum:out", "bfloat16"),
            ("8:f32:avg:out", "sum, max, min, prod"),
            ("8:f32:sum:over", "neither in nor out"),
            ("x:f32:sum:out", "no number of bytes"),
            ("-8:f32:sum:out", "no number of bytes"),
            ("0:f32:sum:out", "no whole number of float32"),
            ("6:f32:sum:out", "no whole number of float32"),
        ];
        for (text, reason) in refused {
            let error = text.parse::<Case>().unwrap_err();
            assert!(error.contains(reason) && error.contains(text), "{error}");
        }
    }

    #[test]
    fn bus_bandwidth_is_the_fields() {
        assert!((Kind::AllReduce(Reduction::Sum).bus_factor(2) - 1.0).abs() < 1e-12);
        assert!((Kind::AllReduce(Reduction::Sum).bus_factor(4) - 1.5).abs() < 1e-12);
        assert!(Kind::AllReduce(Reduction::Sum).bus_factor(1).abs() < 1e-12);
        assert!((Kind::Broadcast(Rank(0)).bus_factor(4) - 1.0).abs() < 1e-12);
    }
}
