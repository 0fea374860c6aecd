//! `wgslm devices`: what models can run on.

use std::io::Write;

use super::exit::Exit;
use super::term;
use super::{open, self_test_results};
use crate::gpu::{Choice, Device, Kind, Matmul, MatmulTuning, Matvec};
use crate::quant::BlockFormat;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Prints a JSON array.
    #[arg(long)]
    json: bool,
    /// Says what is chosen for each GPU, and why. Opens them.
    #[arg(long, conflicts_with = "json")]
    verbose: bool,
}

pub(super) fn run(args: Args) -> Result<(), Exit> {
    let adapters = pollster::block_on(Device::list());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let kind = |kind| match kind {
        Kind::Discrete => "discrete",
        Kind::Integrated => "integrated",
        Kind::Software => "software",
        Kind::Other => "other",
    };
    let mut out = term::out();
    if args.json {
        let mut list = vec![serde_json::json!({ "device": "cpu", "threads": threads })];
        list.extend(adapters.iter().map(|a| {
            serde_json::json!({
                "device": a.index.to_string(),
                "name": a.name,
                "driver": a.driver,
                "backend": a.backend,
                "kind": kind(a.kind),
            })
        }));
        writeln!(out, "{:#}", serde_json::Value::from(list))?;
    } else {
        writeln!(out, "cpu  {threads} thread{}", if threads == 1 { "" } else { "s" })?;
        if args.verbose {
            let when =
                "as many of them as prove to be fastest when a model is opened, for prompts and for answers apart";
            writeln!(out, "     {:<11} {when}: wgslm bench shows them", "threads")?;
        }
        for a in &adapters {
            writeln!(out, "{:<4} {} ({}, {}, {})", a.index, a.name, kind(a.kind), a.backend, a.driver)?;
            if args.verbose {
                choices(&mut out, a.index)?;
            }
        }
    }
    out.flush()?;
    Ok(())
}

/// What is chosen for an adapter, a line each.
fn choices(out: &mut impl Write, index: usize) -> Result<(), Exit> {
    let choice = Choice { index: Some(index), tuning: open::tuning()?, ..Choice::default() };
    let mut line = |what: &str, value: String| writeln!(out, "     {what:<11} {value}");
    let device = match pollster::block_on(Device::open(&choice)) {
        Ok(device) => device,
        Err(error) => return Ok(line("refused", error.to_string())?),
    };
    let (caps, self_test_results) = (device.caps(), self_test_results::known());
    let mib = |bytes: u64| bytes >> 20;
    let limits = format!("{} MiB a binding, {} MiB a buffer", mib(caps.max_binding), mib(caps.max_buffer));
    line("limits", format!("{limits}: larger matrices are split by rows, larger caches are refused"))?;
    line(
        "reductions",
        match caps.subgroups {
            Some((least, most)) => {
                format!("by subgroups of {least} to {most}, right for any size: the device has them")
            }
            None => "through workgroup memory: the device has no subgroups".to_owned(),
        },
    )?;
    let (table, reasons) = caps.table();
    let why = |usual| if usual { "the table for such devices" } else { "WGSLM_TUNING" };
    for ((name, number), (_, usual)) in caps.tuning.numbers().into_iter().zip(table.numbers()) {
        line(name, format!("{number} threads a workgroup: {}", why(number == usual)))?;
    }
    for (choice, formats) in caps.tuning.groups() {
        let MatmulTuning { lanes, cols, row_vec4s, row_vec4s_batch, matvec, dot_k, tile_w, tile_x, small_x, matmul } =
            choice;
        let usual = formats.iter().all(|format| table.matmul(*format) == &choice);
        line("matmul", format!("of {}: {}", BlockFormat::names_of(&formats, ", "), why(usual)))?;
        line(
            "",
            format!(
                "lanes {lanes} threads a workgroup, row_vec4s {row_vec4s}, row_vec4s_batch {row_vec4s_batch} times four rows"
            ),
        )?;
        line("", format!("tile_w {tile_w} rows of W, tile_x {tile_x} rows of x in a tile of a prompt"))?;
        line("", format!("cols {cols} rows of x at a time in decode, small_x {small_x} of a thread in a small tile"))?;
        let in_int8: Vec<_> = formats.iter().copied().filter(|format| caps.matvec(*format) == Matvec::Dot).collect();
        if matvec == Matvec::Dot && in_int8.is_empty() {
            line("", "matvec registers, as there are no dot ones".to_owned())?;
        } else if matvec == Matvec::Dot {
            let of = BlockFormat::names_of(&in_int8, ", ");
            let from = format!("of {of}, of dot_k {dot_k} columns or more");
            line("", format!("matvec dot {from}, for decode with fast numerics, if the self-test passes"))?;
        }
        for form in Matmul::ALL {
            let in_form: Vec<_> = formats.iter().copied().filter(|format| caps.matmul(*format) == form).collect();
            let instead = match form == matmul {
                true => String::new(),
                false => format!(", as there are no {} ones", matmul.name()),
            };
            let of = if in_form.len() == formats.len() {
                String::new()
            } else {
                format!(" of {}", BlockFormat::names_of(&in_form, ", "))
            };
            if !in_form.is_empty() {
                let form = form.name();
                line(
                    "",
                    format!("matmul {form}{of} for prompts with fast numerics, if the self-test passes{instead}"),
                )?;
            }
        }
    }
    for reason in reasons {
        line("table", reason.to_owned())?;
    }
    line(
        "timestamps",
        if device.has_timestamps() { "yes: --profile works" } else { "no: --profile does not work" }.to_owned(),
    )?;
    line(
        "self-test",
        match self_test_results.passed(&device) {
            0 if self_test_results.passed(&device.without_subgroups()) > 0 => {
                "passed without subgroups alone: models run without them".to_owned()
            }
            0 => "not run with these kernels: the first start of a model runs it".to_owned(),
            n => format!(
                "{n} parts passed with these kernels and this driver; a model that needs others runs them at its start"
            ),
        },
    )?;
    Ok(())
}
