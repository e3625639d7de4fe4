//! Product profiles: what the devices of the world that `allreduce` comes from can reduce, as one table.
//!
//! The numbers are those of the documentation of `npu_bridge.hccl.hccl_ops.allreduce`. [`Product::Host`], where no
//! profile is chosen, takes everything.

use core::fmt;
use core::str::FromStr;

use crate::dtype::{DataType, Reduction};

/// A device whose limits are to hold, or [`Host`](Product::Host) for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the table says what each is")]
pub enum Product {
    #[default]
    Host = 0,
    Atlas350 = 1,
    AtlasA3 = 2,
    AtlasA2 = 3,
    Atlas200i500A2 = 4,
    Atlas300iDuo = 5,
    AtlasInference = 6,
    AtlasTraining = 7,
}

/// One row of the table: what a product's `allreduce` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Whose row it is.
    pub product: Product,
    /// The name that selects it, such as `atlas-a2`.
    pub name: &'static str,
    /// What the documentation calls the product.
    pub title: &'static str,
    /// The data types; none if the product has no allreduce.
    pub dtypes: &'static [DataType],
    /// Those of them that are for groups inside one host only.
    pub one_host: &'static [DataType],
    /// The reductions.
    pub reductions: &'static [Reduction],
    /// Pairs that are not taken although the type and the reduction are.
    pub exceptions: &'static [(Reduction, DataType)],
    /// What else there is to know; may be empty.
    pub note: &'static str,
}

use DataType::{Bfloat16, Float16, Float32, Float64, Int8, Int16, Int32, Int64, Uint64};
use Reduction::{Max, Min, Prod, Sum};

const A2_A3_DTYPES: &[DataType] = &[Int8, Int16, Int32, Int64, Float16, Float32, Bfloat16];
const A2_A3_EXCEPTIONS: &[(Reduction, DataType)] = &[(Prod, Int16), (Prod, Bfloat16)];

/// The table, in the order of [`Product::ALL`].
static PROFILES: [Profile; 8] = [
    Profile {
        product: Product::Host,
        name: "host",
        title: "no product: ordinary hosts",
        dtypes: &DataType::ALL,
        one_host: &[],
        reductions: &Reduction::ALL,
        exceptions: &[],
        note: "the default; a variable may feed the op, unharmed",
    },
    Profile {
        product: Product::Atlas350,
        name: "atlas-350",
        title: "Atlas 350",
        dtypes: &[Int8, Int16, Int32, Int64, Uint64, Float16, Float32, Float64, Bfloat16],
        one_host: &[Int64, Uint64, Float64],
        reductions: &[Sum, Max, Min],
        exceptions: &[],
        note: "",
    },
    Profile {
        product: Product::AtlasA3,
        name: "atlas-a3",
        title: "Atlas A3 training / inference",
        dtypes: A2_A3_DTYPES,
        one_host: &[],
        reductions: &Reduction::ALL,
        exceptions: A2_A3_EXCEPTIONS,
        note: "",
    },
    Profile {
        product: Product::AtlasA2,
        name: "atlas-a2",
        title: "Atlas A2 training / inference",
        dtypes: A2_A3_DTYPES,
        one_host: &[],
        reductions: &Reduction::ALL,
        exceptions: A2_A3_EXCEPTIONS,
        note: "on the device, int64 is slower than the other types",
    },
    Profile {
        product: Product::Atlas200i500A2,
        name: "atlas-200i-500-a2",
        title: "Atlas 200I/500 A2 inference",
        dtypes: &[],
        one_host: &[],
        reductions: &[],
        exceptions: &[],
        note: "",
    },
    Profile {
        product: Product::Atlas300iDuo,
        name: "atlas-300i-duo",
        title: "Atlas inference series, the card 300I Duo",
        dtypes: &[Int8, Int16, Int32, Float16, Float32],
        one_host: &[],
        reductions: &Reduction::ALL,
        exceptions: &[(Max, Int16), (Min, Int16), (Prod, Int16)],
        note: "",
    },
    Profile {
        product: Product::AtlasInference,
        name: "atlas-inference",
        title: "Atlas inference series, any other card",
        dtypes: &[],
        one_host: &[],
        reductions: &[],
        exceptions: &[],
        note: "",
    },
    Profile {
        product: Product::AtlasTraining,
        name: "atlas-training",
        title: "Atlas training series",
        dtypes: &[Int8, Int32, Int64, Float16, Float32],
        one_host: &[],
        reductions: &Reduction::ALL,
        exceptions: &[],
        note: "the page names no reductions for it: all four are taken",
    },
];

impl Profile {
    /// The exceptions as a list of types for each reduction that has some.
    #[must_use]
    pub fn exceptions_by_reduction(&self) -> Vec<(Reduction, Vec<DataType>)> {
        let of = |reduction: Reduction| {
            let found = self.exceptions.iter().filter(|(excepted, _)| *excepted == reduction);
            (reduction, found.map(|(_, dtype)| *dtype).collect::<Vec<_>>())
        };
        self.reductions.iter().map(|reduction| of(*reduction)).filter(|(_, dtypes)| !dtypes.is_empty()).collect()
    }
}

/// Where a product takes a type with a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// In every group.
    Everywhere,
    /// In groups inside one host.
    InsideOneHost,
    /// Nowhere.
    Nowhere,
}

impl Product {
    /// Every product.
    pub const ALL: [Product; 8] = [
        Product::Host,
        Product::Atlas350,
        Product::AtlasA3,
        Product::AtlasA2,
        Product::Atlas200i500A2,
        Product::Atlas300iDuo,
        Product::AtlasInference,
        Product::AtlasTraining,
    ];

    /// The product's row of the table.
    #[must_use]
    pub fn profile(self) -> &'static Profile {
        &PROFILES[usize::from(self.code())]
    }

    /// The name that selects it, such as `atlas-a2`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.profile().name
    }

    /// The stable number that ranks compare.
    #[must_use]
    #[allow(clippy::as_conversions, reason = "a fieldless repr(u8) enum")]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The product with this [`code`](Self::code), if there is one.
    #[inline]
    #[must_use]
    pub fn from_code(code: u8) -> Option<Product> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Whether it has an allreduce at all.
    #[must_use]
    pub fn has_allreduce(self) -> bool {
        !self.profile().dtypes.is_empty()
    }

    /// Whether a variable may be the node that feeds an allreduce in a graph.
    #[must_use]
    pub fn takes_variables(self) -> bool {
        self == Product::Host
    }

    /// Where it reduces elements of this type so.
    #[must_use]
    pub fn support(self, dtype: DataType, reduction: Reduction) -> Support {
        let profile = self.profile();
        let known = profile.dtypes.contains(&dtype) && profile.reductions.contains(&reduction);
        if !known || profile.exceptions.contains(&(reduction, dtype)) {
            Support::Nowhere
        } else if profile.one_host.contains(&dtype) {
            Support::InsideOneHost
        } else {
            Support::Everywhere
        }
    }

    /// Whether it reduces elements of this type so, in a group that spans hosts or does not.
    ///
    /// # Errors
    /// [`Unsupported`], whose texts say what the product takes, and who takes what was asked for.
    pub fn check(self, dtype: DataType, reduction: Reduction, spans_hosts: bool) -> Result<(), Unsupported> {
        match self.support(dtype, reduction) {
            Support::Everywhere => Ok(()),
            Support::InsideOneHost if !spans_hosts => Ok(()),
            _ => Err(Unsupported { product: self, dtype, reduction, spans_hosts }),
        }
    }

    /// What it takes, in words.
    #[must_use]
    pub fn summary(self) -> String {
        let profile = self.profile();
        if !self.has_allreduce() {
            return "no allreduce".into();
        }
        let mut text = format!("{} with {}", names(profile.dtypes), names(profile.reductions));
        for (reduction, refused) in profile.exceptions_by_reduction() {
            text.push_str(&format!("; not {reduction} of {}", names(&refused)));
        }
        if !profile.one_host.is_empty() {
            text.push_str(&format!("; {} only inside one host", names(profile.one_host)));
        }
        text
    }

    /// The settings that ranks compare in each call, with this product in the lowest byte.
    #[must_use]
    pub fn into_settings(self, settings: u64) -> u64 {
        settings & !0xff | u64::from(self.code())
    }

    /// The product in the settings of a rank.
    #[inline]
    #[must_use]
    pub fn of_settings(settings: u64) -> Option<Product> {
        Product::from_code(settings.to_le_bytes()[0])
    }
}

fn names<T: fmt::Display>(things: &[T]) -> String {
    things.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Product {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|product| product.name() == text)
            .ok_or_else(|| format!("product {text:?} is not known: expected {}", Self::expected()))
    }
}

impl Product {
    /// What is allowed where the name of a product is expected.
    #[must_use]
    pub fn expected() -> String {
        format!("one of {}", names(&Self::ALL))
    }
}

/// What a product does not take. Its texts are those of an [`InvalidArgument`](crate::error::InvalidArgument).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The product.
    pub product: Product,
    /// The type of the elements.
    pub dtype: DataType,
    /// How they were to be combined.
    pub reduction: Reduction,
    /// Whether the group spans hosts.
    pub spans_hosts: bool,
}

impl Unsupported {
    /// What is at fault: `product`, `dtype`, `reduction` or `group`.
    #[must_use]
    pub fn field(&self) -> &'static str {
        let profile = self.product.profile();
        if !self.product.has_allreduce() {
            "product"
        } else if !profile.dtypes.contains(&self.dtype) {
            "dtype"
        } else if self.product.support(self.dtype, self.reduction) == Support::Nowhere {
            "reduction"
        } else {
            "group"
        }
    }

    /// What the product takes.
    #[must_use]
    pub fn expected(&self) -> String {
        if self.product.has_allreduce() {
            format!("what product {} takes ({})", self.product, self.product.summary())
        } else {
            "a product that has an allreduce".into()
        }
    }

    /// What was asked for, and the products that take it.
    #[must_use]
    pub fn got(&self) -> String {
        let Unsupported { product, dtype, reduction, spans_hosts } = *self;
        let takers = Product::ALL.into_iter().filter(|other| other.check(dtype, reduction, spans_hosts).is_ok());
        let takers: Vec<_> = takers
            .map(|other| match other.support(dtype, reduction) {
                Support::InsideOneHost => format!("{other} (inside one host)"),
                _ => other.to_string(),
            })
            .collect();
        let whose = if product.has_allreduce() { String::new() } else { format!("{product}, which has none, for ") };
        let place = if spans_hosts { " in a group that spans hosts" } else { "" };
        format!("{whose}{dtype} with {reduction}{place}; products that take it: {}", takers.join(", "))
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, got {}", self.field(), self.expected(), self.got())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The documentation's table once more, as text: dtypes, dtypes inside one host only, and for each reduction the
    /// dtypes that it is not for; `-` where the product lacks the reduction.
    const PAGE: [(&str, &str, &str, [&str; 4]); 8] = [
        (
            "host",
            "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64",
            "",
            ["", "", "", ""],
        ),
        (
            "atlas-350",
            "int8 int16 int32 int64 uint64 float16 float32 float64 bfloat16",
            "int64 uint64 float64",
            ["", "", "", "-"],
        ),
        ("atlas-a3", "int8 int16 int32 int64 float16 float32 bfloat16", "", ["", "", "", "int16 bfloat16"]),
        ("atlas-a2", "int8 int16 int32 int64 float16 float32 bfloat16", "", ["", "", "", "int16 bfloat16"]),
        ("atlas-200i-500-a2", "", "", ["-", "-", "-", "-"]),
        ("atlas-300i-duo", "int8 int16 int32 float16 float32", "", ["", "int16", "int16", "int16"]),
        ("atlas-inference", "", "", ["-", "-", "-", "-"]),
        ("atlas-training", "int8 int32 int64 float16 float32", "", ["", "", "", ""]),
    ];

    fn has(words: &str, word: &str) -> bool {
        words.split(' ').any(|each| each == word)
    }

    #[test]
    fn r4_every_product_dtype_and_reduction_is_as_the_page_says() {
        let mut taken = 0;
        for (name, dtypes, one_host, exceptions) in PAGE {
            let product: Product = name.parse().unwrap();
            for dtype in DataType::ALL {
                for (reduction, refused) in ["sum", "max", "min", "prod"].into_iter().zip(exceptions) {
                    let known = has(dtypes, dtype.name()) && refused != "-" && !has(refused, dtype.name());
                    let reduction = reduction.parse().unwrap();
                    for spans_hosts in [false, true] {
                        let expected = known && !(spans_hosts && has(one_host, dtype.name()));
                        let found = product.check(dtype, reduction, spans_hosts);
                        assert_eq!(found.is_ok(), expected, "{name} {dtype} {reduction} {spans_hosts}: {found:?}");
                        taken += usize::from(found.is_ok());
                    }
                }
            }
        }
        // Counted by hand: 48 + 27 + 26 + 26 + 0 + 17 + 0 + 20 inside a host, 9 fewer between hosts.
        assert_eq!(taken, 164 + 155);
    }

    #[test]
    fn r4_a_refusal_says_what_the_product_takes_and_who_takes_it() {
        let refusal = |name: &str, dtype, reduction, spans_hosts| {
            let product: Product = name.parse().unwrap();
            product.check(dtype, reduction, spans_hosts).unwrap_err().to_string()
        };
        assert_eq!(
            refusal("atlas-a2", Float64, Sum, false),
            "dtype: expected what product atlas-a2 takes (int8, int16, int32, int64, float16, float32, bfloat16 with sum, \
             max, min, prod; not prod of int16, bfloat16), got float64 with sum; products that take it: host, atlas-350 \
             (inside one host)"
        );
        assert_eq!(
            refusal("atlas-300i-duo", Int16, Max, false),
            "reduction: expected what product atlas-300i-duo takes (int8, int16, int32, float16, float32 with sum, max, \
             min, prod; not max of int16; not min of int16; not prod of int16), got int16 with max; products that take \
             it: host, atlas-350, atlas-a3, atlas-a2"
        );
        assert_eq!(
            refusal("atlas-350", Int64, Min, true),
            "group: expected what product atlas-350 takes (int8, int16, int32, int64, uint64, float16, float32, float64, \
             bfloat16 with sum, max, min; int64, uint64, float64 only inside one host), got int64 with min in a group \
             that spans hosts; products that take it: host, atlas-a3, atlas-a2, atlas-training"
        );
        assert_eq!(
            refusal("atlas-inference", Float32, Sum, false),
            "product: expected a product that has an allreduce, got atlas-inference, which has none, for float32 with \
             sum; products that take it: host, atlas-350, atlas-a3, atlas-a2, atlas-300i-duo, atlas-training"
        );
    }

    #[test]
    fn names_codes_and_rows_belong_together() {
        for product in Product::ALL {
            assert_eq!(product.profile().product, product);
            assert_eq!(product.name().parse(), Ok(product));
            assert_eq!(Product::from_code(product.code()), Some(product));
            assert_eq!(Product::of_settings(product.into_settings(u64::MAX)), Some(product));
            assert_eq!(product.into_settings(u64::MAX) >> 8, u64::MAX >> 8);
            assert_eq!(product.takes_variables(), product.name() == "host");
        }
        assert_eq!(Product::from_code(8), None);
        assert_eq!(Product::default().name(), "host");
        let error = "atlas-9".parse::<Product>().unwrap_err();
        assert!(error.contains("\"atlas-9\"") && error.contains("atlas-300i-duo"), "{error}");
        assert!("Host".parse::<Product>().is_err() && "".parse::<Product>().is_err());
    }

    #[test]
    fn what_a_row_excepts_is_in_the_row() {
        for profile in PROFILES {
            assert_eq!(profile.dtypes.is_empty(), profile.reductions.is_empty(), "{}", profile.name);
            assert!(profile.one_host.iter().all(|dtype| profile.dtypes.contains(dtype)), "{}", profile.name);
            for (reduction, dtype) in profile.exceptions {
                assert!(profile.dtypes.contains(dtype) && profile.reductions.contains(reduction), "{}", profile.name);
            }
        }
    }
}
