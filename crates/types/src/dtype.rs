use core::fmt;
use core::str::FromStr;

/// The type of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names say it all")]
pub enum DataType {
    Int8 = 1,
    Int16 = 2,
    Int32 = 3,
    Int64 = 4,
    Uint8 = 5,
    Uint16 = 6,
    Uint32 = 7,
    Uint64 = 8,
    Float16 = 9,
    Bfloat16 = 10,
    Float32 = 11,
    Float64 = 12,
}

impl DataType {
    /// Every data type.
    pub const ALL: [DataType; 12] = [
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::Uint8,
        DataType::Uint16,
        DataType::Uint32,
        DataType::Uint64,
        DataType::Float16,
        DataType::Bfloat16,
        DataType::Float32,
        DataType::Float64,
    ];

    /// Size of one element in bytes: 1, 2, 4 or 8.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            DataType::Int8 | DataType::Uint8 => 1,
            DataType::Int16 | DataType::Uint16 | DataType::Float16 | DataType::Bfloat16 => 2,
            DataType::Int32 | DataType::Uint32 | DataType::Float32 => 4,
            DataType::Int64 | DataType::Uint64 | DataType::Float64 => 8,
        }
    }

    /// The name that Python and the command line use, such as `float32`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DataType::Int8 => "int8",
            DataType::Int16 => "int16",
            DataType::Int32 => "int32",
            DataType::Int64 => "int64",
            DataType::Uint8 => "uint8",
            DataType::Uint16 => "uint16",
            DataType::Uint32 => "uint32",
            DataType::Uint64 => "uint64",
            DataType::Float16 => "float16",
            DataType::Bfloat16 => "bfloat16",
            DataType::Float32 => "float32",
            DataType::Float64 => "float64",
        }
    }

    /// The stable number used on the wire and in the C table.
    #[must_use]
    #[allow(clippy::as_conversions, reason = "a fieldless repr(u8) enum")]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The data type with this [`code`](Self::code), if there is one.
    #[must_use]
    pub fn from_code(code: u8) -> Option<DataType> {
        Self::ALL.into_iter().find(|d| d.code() == code)
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DataType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|d| d.name() == text).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|d| d.name()).collect();
            format!("dtype {text:?} is not supported: expected one of {}", names.join(", "))
        })
    }
}

/// How the ranks' elements are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reduction {
    /// Addition; integers wrap.
    Sum = 1,
    /// The larger; NaN wins, -0 is less than +0.
    Max = 2,
    /// The smaller; NaN wins, -0 is less than +0.
    Min = 3,
    /// Multiplication; integers wrap.
    Prod = 4,
}

impl Reduction {
    /// Every reduction.
    pub const ALL: [Reduction; 4] = [Reduction::Sum, Reduction::Max, Reduction::Min, Reduction::Prod];

    /// The name that Python and the command line use: `sum`, `max`, `min`, `prod`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Reduction::Sum => "sum",
            Reduction::Max => "max",
            Reduction::Min => "min",
            Reduction::Prod => "prod",
        }
    }

    /// The stable number used on the wire and in the C table.
    #[must_use]
    #[allow(clippy::as_conversions, reason = "a fieldless repr(u8) enum")]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The reduction with this [`code`](Self::code), if there is one.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Reduction> {
        Self::ALL.into_iter().find(|r| r.code() == code)
    }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Reduction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|r| r.name() == text)
            .ok_or_else(|| format!("reduction {text:?} is not supported: expected one of sum, max, min, prod"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_round_trip() {
        for d in DataType::ALL {
            assert_eq!(d.name().parse(), Ok(d));
            assert_eq!(DataType::from_code(d.code()), Some(d));
        }
        for r in Reduction::ALL {
            assert_eq!(r.name().parse(), Ok(r));
            assert_eq!(Reduction::from_code(r.code()), Some(r));
        }
        assert_eq!(DataType::from_code(0), None);
        assert_eq!(Reduction::from_code(5), None);
    }

    #[test]
    fn unknown_names_say_what_is_allowed() {
        let error = "avg".parse::<Reduction>().unwrap_err();
        assert!(error.contains("\"avg\"") && error.contains("sum, max, min, prod"), "{error}");
        let error = "float8".parse::<DataType>().unwrap_err();
        assert!(error.contains("bfloat16"), "{error}");
    }
}
