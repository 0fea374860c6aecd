//! `wgslm devices`: what models can run on.

use std::io::{Write, stdout};

use super::exit::Exit;
use crate::gpu::{Device, Kind};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Prints a JSON array.
    #[arg(long)]
    json: bool,
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
    let mut out = stdout().lock();
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
        for a in &adapters {
            writeln!(out, "{:<4} {} ({}, {}, {})", a.index, a.name, kind(a.kind), a.backend, a.driver)?;
        }
    }
    out.flush()?;
    Ok(())
}
