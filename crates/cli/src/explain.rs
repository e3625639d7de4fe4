//! `foldcast explain`: which algorithm a call takes, and why.

use std::io::Write as _;
use std::process::ExitCode;

use foldcast::plans::{Candidate, Choice, Constants, Explanation, Shape};
use foldcast::{Config, DataType, MAX_INPUT, Reduction, costs};
use serde_json::{Value, json};

use crate::run::MAX_RANKS;

/// Say which algorithm an allreduce takes on this machine, and why
#[derive(clap::Args)]
#[command(after_help = "\
Costs are those that `foldcast tune` has measured, else built-in ones; FOLDCAST_COSTS names another file, or is off.
FOLDCAST_ALGO forces an algorithm for every call that it can do. Both count on the first rank of a group, which hands
them out to the others. Predicted times decide between algorithms, and promise nothing.")]
pub(crate) struct Args {
    /// Number of ranks of the group
    #[arg(short = 'n', long, value_name = "N", default_value = "2", value_parser = parse_ranks, allow_negative_numbers = true)]
    ranks: usize,
    /// Size of the array in bytes, such as 4096, 64K, 1M or 1G
    #[arg(short, long, value_name = "SIZE", default_value = "1M", value_parser = parse_bytes, allow_negative_numbers = true)]
    bytes: usize,
    /// Type of the elements
    #[arg(short, long, value_name = "TYPE", default_value = "float32", value_parser = parse_dtype)]
    dtype: DataType,
    /// How elements are combined; it makes no difference to the choice
    #[arg(short, long, value_name = "OP", default_value = "sum", value_parser = parse_reduction)]
    reduction: Reduction,
    /// Buffers in memory that all ranks can read where it is, as `foldcast.empty` gives
    #[arg(short, long)]
    windows: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_ranks(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(ranks) if (1..=MAX_RANKS).contains(&ranks) => Ok(ranks),
        _ => Err(format!("expected a number of ranks from 1 to {MAX_RANKS}")),
    }
}

/// A size in bytes, with K, M or G (or KiB, MiB, GiB) for powers of 1024.
fn parse_bytes(text: &str) -> Result<usize, String> {
    let refused = || format!("expected a size from 0 to {MAX_INPUT}, such as 4096, 64K or 1M");
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let unit: u64 = match text.get(digits.len()..).unwrap_or_default().to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KIB" => 1 << 10,
        "M" | "MIB" => 1 << 20,
        "G" | "GIB" => 1 << 30,
        _ => return Err(refused()),
    };
    let number: u64 = digits.parse().map_err(|_| refused())?;
    let bytes = number.checked_mul(unit).filter(|bytes| *bytes <= MAX_INPUT.0).ok_or_else(refused)?;
    usize::try_from(bytes).map_err(|_| refused())
}

fn parse_dtype(text: &str) -> Result<DataType, String> {
    text.parse().map_err(|_| format!("expected one of {}", DataType::ALL.map(DataType::name).join(", ")))
}

fn parse_reduction(text: &str) -> Result<Reduction, String> {
    text.parse().map_err(|_| format!("expected one of {}", Reduction::ALL.map(Reduction::name).join(", ")))
}

/// Prints the explanation; the exit code is the command's.
pub(crate) fn run(args: &Args) -> ExitCode {
    match explain(args) {
        Ok(text) => {
            // Whoever closes the pipe has read enough.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "foldcast explain: {why}");
            ExitCode::from(2)
        }
    }
}

fn explain(args: &Args) -> Result<String, String> {
    let &Args { ranks, bytes, dtype, json, windows, .. } = args;
    let size = dtype.size();
    if !bytes.is_multiple_of(size) {
        return Err(format!("{bytes} bytes are no whole number of {dtype} elements, which have {size} bytes each"));
    }
    let (from, forced) = Config::choice_from_env().map_err(|error| error.to_string())?;
    let costs = costs::load(&from);
    if let Some(complaint) = &costs.complaint {
        let _ = writeln!(std::io::stderr(), "foldcast explain: {complaint}");
    }
    let source = costs.file.as_ref().map_or("built in".to_owned(), |file| file.display().to_string());
    let choice = Choice { constants: costs.constants, forced };
    let shape = Shape::all_reduce(ranks, bytes, size);
    let explanation = Explanation::of(&if windows { shape.in_readable_memory() } else { shape }, &choice);
    if json {
        return Ok(format!("{:#}\n", print_json(args, &explanation, &choice, &source)));
    }
    Ok(format!("{explanation}costs: {source}\n"))
}

fn print_json(args: &Args, explanation: &Explanation, choice: &Choice, source: &str) -> Value {
    let Explanation { chosen, why, candidates, plan, .. } = explanation;
    let candidate =
        |Candidate { name, predicted_us }: &Candidate| json!({ "name": name, "predicted_us": predicted_us });
    json!({
        "ranks": args.ranks,
        "bytes": args.bytes,
        "dtype": args.dtype.name(),
        "reduction": args.reduction.name(),
        "windows": args.windows,
        "algorithm": chosen,
        "source": explanation.source,
        "why": why,
        "forced": choice.forced,
        "candidates": candidates.iter().map(candidate).collect::<Vec<_>>(),
        "plan": {
            "id": format!("{:016x}", plan.id),
            "rounds": plan.rounds,
            "steps": plan.steps.len(),
            "outline": explanation.outline(),
        },
        "costs": print_costs(&choice.constants),
        "costs_from": source,
    })
}

/// Costs by their names.
pub(crate) fn print_costs(constants: &Constants) -> Value {
    Constants::NAMES.iter().zip(constants.values()).map(|(name, value)| (*name, value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        let sizes =
            [("0", 0), ("8", 8), ("8B", 8), ("64K", 64 << 10), ("1m", 1 << 20), ("2MiB", 2 << 20), ("8G", 8 << 30)];
        for (text, bytes) in sizes {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "-1", "1.5M", "8Q", "9G", "99999999999999999999", "1 M", "1M2", "ü"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}
