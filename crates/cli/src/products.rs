//! `foldcast products`: the table of products, for people, for programs and for the documentation.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use foldcast::{DataType, Product, Reduction, Support};
use serde_json::{Map, Value, json};

/// Show what each product's allreduce takes
#[derive(clap::Args)]
#[command(after_help = "\
A product is chosen by the variable FOLDCAST_PRODUCT, or in Python by foldcast.set_product(). Calls are then held to what
that product's allreduce takes. The default is host, which takes everything.")]
pub(crate) struct Args {
    /// Print JSON: a list of objects, as foldcast.products() gives it in Python
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print docs/products.md
    #[arg(long)]
    markdown: bool,
}

/// Prints the table; the exit code is the command's.
pub(crate) fn run(args: &Args) -> ExitCode {
    let text = if args.json {
        format!("{:#}\n", json())
    } else if args.markdown {
        markdown()
    } else {
        matrix()
    };
    // Whoever closes the pipe has read enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn names<T: ToString>(things: &[T]) -> Vec<String> {
    things.iter().map(T::to_string).collect()
}

fn json() -> Value {
    let row = |product: Product| {
        let profile = product.profile();
        let exceptions: Map<_, _> = profile
            .exceptions_by_reduction()
            .into_iter()
            .map(|(reduction, dtypes)| (reduction.to_string(), json!(names(&dtypes))))
            .collect();
        json!({
            "name": profile.name,
            "title": profile.title,
            "allreduce": product.has_allreduce(),
            "dtypes": names(profile.dtypes),
            "one_host_dtypes": names(profile.one_host),
            "reductions": names(profile.reductions),
            "exceptions": exceptions,
            "variables": product.takes_variables(),
            "note": profile.note,
        })
    };
    Product::ALL.into_iter().map(row).collect()
}

// ---- for people ----

/// The dtypes by kind and bits, in the order of the matrix's columns.
const COLUMNS: [(&str, &[DataType]); 4] = [
    ("int", &[DataType::Int8, DataType::Int16, DataType::Int32, DataType::Int64]),
    ("uint", &[DataType::Uint8, DataType::Uint16, DataType::Uint32, DataType::Uint64]),
    ("float", &[DataType::Float16, DataType::Float32, DataType::Float64]),
    ("bfloat", &[DataType::Bfloat16]),
];

/// Width of the column of names, and of the others.
const NAME: usize = 18;
const CELL: usize = 5;

fn letter(reduction: Reduction) -> char {
    match reduction {
        Reduction::Sum => 's',
        Reduction::Max => 'M',
        Reduction::Min => 'm',
        Reduction::Prod => 'p',
    }
}

fn cell(product: Product, dtype: DataType) -> String {
    let taken = |reduction| product.support(dtype, reduction) != Support::Nowhere;
    Reduction::ALL.map(|reduction| if taken(reduction) { letter(reduction) } else { '.' }).iter().collect()
}

fn matrix() -> String {
    let mut lines = vec![String::new(); 2];
    let _ = write!(lines[0], "{:NAME$}", "");
    let _ = write!(lines[1], "{:NAME$}", "product");
    for (kind, dtypes) in COLUMNS {
        let _ = write!(lines[0], "{kind:width$}", width = CELL * dtypes.len());
        for dtype in dtypes {
            let _ = write!(lines[1], "{:<CELL$}", dtype.size() * 8);
        }
    }
    for product in Product::ALL {
        let mut line = format!("{:NAME$}", product.name());
        for dtype in COLUMNS.iter().flat_map(|(_, dtypes)| *dtypes) {
            let _ = write!(line, "{:CELL$}", cell(product, *dtype));
        }
        lines.push(line);
    }
    lines.push(String::new());
    lines.push("s sum, M max, m min, p prod, . refused".into());
    lines.push(String::new());
    for product in Product::ALL {
        let profile = product.profile();
        lines.push(format!("{:NAME$}{}", profile.name, profile.title));
        for note in notes(product) {
            lines.push(format!("{:NAME$}  {note}", ""));
        }
    }
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// What the matrix does not show.
fn notes(product: Product) -> Vec<String> {
    let profile = product.profile();
    let mut notes = Vec::new();
    if !product.has_allreduce() {
        notes.push("no allreduce".into());
    }
    if !profile.one_host.is_empty() {
        notes.push(format!("{} only inside one host", names(profile.one_host).join(", ")));
    }
    if !profile.note.is_empty() {
        notes.push(profile.note.into());
    }
    notes
}

// ---- for the documentation ----

fn markdown() -> String {
    let mut text = String::from(INTRODUCTION);
    text.push_str("| profile | product | dtypes | reductions | notes |\n|---|---|---|---|---|\n");
    for product in Product::ALL {
        let profile = product.profile();
        let or_none = |list: Vec<String>| if list.is_empty() { "none".into() } else { list.join(" ") };
        let exceptions = profile.exceptions_by_reduction().into_iter();
        let mut notes: Vec<_> = exceptions
            .map(|(reduction, dtypes)| format!("{reduction} not for {}", names(&dtypes).join(", ")))
            .collect();
        notes.extend(self::notes(product));
        let (dtypes, reductions) = (or_none(names(profile.dtypes)), or_none(names(profile.reductions)));
        let (name, title, notes) = (profile.name, profile.title, notes.join("; "));
        let _ = writeln!(text, "| `{name}` | {title} | {dtypes} | {reductions} | {notes} |");
    }
    text.push_str(MATRIX);
    let heads = Product::ALL.map(|product| format!("`{product}`"));
    let _ = writeln!(text, "| dtype | {} |\n|---|{}", heads.join(" | "), "---|".repeat(heads.len()));
    for dtype in DataType::ALL {
        let cells = Product::ALL.map(|product| markdown_cell(product, dtype));
        let _ = writeln!(text, "| {dtype} | {} |", cells.join(" | "));
    }
    text
}

fn markdown_cell(product: Product, dtype: DataType) -> String {
    let taken: Vec<_> =
        Reduction::ALL.into_iter().filter(|each| product.support(dtype, *each) != Support::Nowhere).collect();
    let star = if product.profile().one_host.contains(&dtype) { " *" } else { "" };
    match taken.len() {
        0 => "-".into(),
        4 => format!("all{star}"),
        _ => format!("{}{star}", names(&taken).join(" ")),
    }
}

const INTRODUCTION: &str = "\
<!-- Written by `foldcast products --markdown`. -->
# Products

The page that `allreduce` comes from (see [allreduce.md](allreduce.md)) says for each device which dtypes and reductions
it takes. A program that is to run there can be held to the same limits here:

```sh
FOLDCAST_PRODUCT=atlas-a2 foldcast run -n 4 -- python train.py
```
```python
foldcast.set_product(\"atlas-a2\")   # before or after init(), on all ranks at the same point
foldcast.product()                 # 'atlas-a2'
foldcast.products()                # this table as data; `foldcast products --json` prints it
```

With a product chosen, what it does not take is refused: in TensorFlow when the op is made, with the node's name, and
elsewhere by the call, before anything is sent; the message says what the product takes and which products take what was
asked for. A variable that feeds the op is refused too, as on the page, unless an op of the program's own, such as
`tf.identity`, stands between them. Without a product, or with `host`, everything is taken.

The product is part of what ranks compare in each call: where theirs differ, all of them get a `MismatchError` that
names the product of each. A call that only some ranks' products refuse is not made by those, so the others wait for it;
the first call that all of them make is told what is wrong. Choose the product by the environment, which
`foldcast run` gives to all ranks, and this cannot come up.

";

const MATRIX: &str = "
## Every dtype

`all` is sum, max, min and prod. `*`: only in groups inside one host.

";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r4_the_matrix_fits_80_columns_and_shows_every_product() {
        let text = matrix();
        assert!(text.lines().all(|line| line.len() <= 80 && line.is_ascii()), "{text}");
        let row = |product: &str| {
            let found = text.lines().find(|line| line.starts_with(&format!("{product} ")));
            found.unwrap_or_else(|| panic!("no {product} in\n{text}")).split_whitespace().skip(1).collect::<Vec<_>>()
        };
        assert_eq!(row("product").join(" "), "8 16 32 64 8 16 32 64 16 32 64 16");
        assert_eq!(row("atlas-a2").join(" "), "sMmp sMm. sMmp sMmp .... .... .... .... sMmp sMmp .... sMm.");
        assert_eq!(row("atlas-300i-duo").join(" "), "sMmp s... sMmp .... .... .... .... .... sMmp sMmp .... ....");
        for product in Product::ALL {
            assert_eq!(row(product.name()).len(), 12, "{product}");
            assert!(text.contains(product.profile().title), "{product}");
        }
    }

    #[test]
    fn r4_the_document_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/products.md");
        let found = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            found == markdown(),
            "write it anew: cargo run -p foldcast-cli -- products --markdown >docs/products.md"
        );
    }

    #[test]
    fn r4_json_has_the_whole_table() {
        let json = json();
        for (row, product) in json.as_array().expect("a list").iter().zip(Product::ALL) {
            assert_eq!(row["name"], product.name());
            for dtype in DataType::ALL {
                for reduction in Reduction::ALL {
                    let has = |list: &Value, name: &str| {
                        list.as_array().is_some_and(|list| list.iter().any(|each| each == name))
                    };
                    let taken = has(&row["dtypes"], dtype.name())
                        && has(&row["reductions"], reduction.name())
                        && !has(&row["exceptions"][reduction.name()], dtype.name());
                    let support = product.support(dtype, reduction);
                    assert_eq!(taken, support != Support::Nowhere, "{product} {dtype} {reduction}");
                    let inside = taken && has(&row["one_host_dtypes"], dtype.name());
                    assert_eq!(inside, support == Support::InsideOneHost, "{product} {dtype} {reduction}");
                }
            }
        }
        assert_eq!(json.as_array().map(Vec::len), Some(Product::ALL.len()));
    }
}
