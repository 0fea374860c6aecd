//! `wgslm bench`.

use serde_json::Value;

use super::{Q8_0, command, fails, ok, output, with};

/// `wgslm bench` of the smallest shape on one thread.
fn tiny(args: &[&str]) -> std::process::Command {
    let mut command = command(&["bench", "--shape", "tiny", "--device", "cpu", "-t", "1", "-r", "2"]);
    command.args(args);
    command
}

fn array(stdout: &str) -> Vec<Value> {
    serde_json::from_str(stdout).unwrap_or_else(|e| panic!("{e}: {stdout}"))
}

#[test]
fn the_table_has_llama_benchs_tests() {
    let output = output(tiny(&["-p", "8,16", "-n", "4", "-d", "0,32"]));
    assert!(output.stderr.is_empty(), "{:?}", String::from_utf8_lossy(&output.stderr));
    let table = ok(output);
    let lines: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| tiny Q4_K_M"))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let tests: Vec<&str> = lines.iter().map(|line| line[7]).collect();
    assert_eq!(tests, ["pp8", "pp16", "tg4", "pp8 @ d32", "pp16 @ d32", "tg4 @ d32"]);
    for line in &lines {
        assert_eq!((line[3], line[4], line[6]), ("1.31 M", "CPU", "1"));
        assert!(line[8].contains(" ± "), "{line:?}");
    }
    assert!(lines[2][9].contains("GB/s") && lines[2][9].contains(" % of "), "{table}");
    assert!(!table.contains('\x1b'));
}

#[test]
fn json_has_every_sample_and_counts_what_a_token_reads() {
    // In F32 a token reads every matrix but the table, of which it reads a row; in this shape the head is the table. At depth 32
    // it also reads 33 + 4 / 2 positions of two layers' keys and values, 2 heads of 64 each, in 16 bits.
    let layers = 2 * (256 * (256 + 128 + 128) + 256 * 256 + 3 * 256 * 512);
    let weights = 4 * (layers + 512 * 256 + 256);
    for (depth, cache) in [("0", 2 * 3 * 2 * 128 * 2), ("32", 2 * 35 * 2 * 128 * 2)] {
        let out = ok(output(tiny(&["--quant", "F32", "-p", "0", "-n", "4", "-d", depth, "-o", "json"])));
        let [test] = &array(&out)[..] else { panic!("{out}") };
        assert_eq!(test["samples_ns"].as_array().unwrap().len(), 2);
        assert_eq!(test["n_gen"], 4);
        assert_eq!(test["bytes_per_token"], weights + cache, "at depth {depth}");
        assert!(test["avg_ts"].as_f64().unwrap() > 0.0 && test["bandwidth"].as_f64().unwrap() > 1e8);
    }
}

#[test]
fn csv_has_a_line_a_test() {
    let out = ok(output(tiny(&["-p", "4", "-n", "2", "-o", "csv"])));
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0].starts_with("version,model,model_type,"));
    let fields = |line: &str| line.split(',').count();
    assert!(lines.iter().all(|line| fields(line) == fields(lines[0])), "{out}");
    assert!(lines[2].contains("\"tg2\""));
}

#[test]
fn a_profile_names_kernels_and_their_shares() {
    let out = ok(output(tiny(&["-p", "0", "-n", "4", "--profile", "--quant", "Q4_0"])));
    let (_, profile) = out.split_once("kernel ").unwrap();
    assert!(out.contains("tg4 on cpu, 1 thread"), "{out}");
    for kernel in ["linear 1024x256 Q4_0", "linear 512x256 Q6_K", "attend 4/2 heads of 64", "sample"] {
        assert!(profile.contains(kernel), "{kernel}: {out}");
    }
    let shares =
        profile.lines().filter_map(|line| line.strip_suffix(" %")?.split_whitespace().last()?.parse::<f64>().ok());
    let sum: f64 = shares.sum();
    assert!((sum - 100.0).abs() < 1.0, "{sum}: {out}");
}

#[test]
fn a_gpu_is_named_and_profiled() {
    let args =
        ["bench", "--shape", "tiny", "--device", "gpu", "-p", "8", "-n", "4", "-r", "1", "--profile", "-o", "json"];
    let tests = array(&ok(output(command(&args))));
    assert_eq!(tests.len(), 2);
    for test in &tests {
        assert!(!test["device"].as_str().unwrap().is_empty() && !test["driver"].as_str().unwrap().is_empty());
        assert_eq!(test["n_threads"], Value::Null);
        let kernels = test["profile"]["kernels"].as_array().unwrap();
        assert!(kernels.iter().all(|kernel| kernel["ns"].as_u64().unwrap() > 0));
        let bytes: u64 = kernels.iter().map(|kernel| kernel["bytes"].as_u64().unwrap()).sum();
        assert!(bytes > 500_000, "{test}");
    }
    assert!(tests[1]["profile"]["kernels"].to_string().contains("matvec"));
}

#[test]
fn a_file_is_measured() {
    let out = ok(output(with("bench", Q8_0, &["-p", "16", "-n", "8", "-r", "1", "-o", "json"])));
    let tests = array(&out);
    assert_eq!((tests[0]["test"].as_str(), tests[1]["test"].as_str()), (Some("pp16"), Some("tg8")));
    assert_eq!(tests[0]["model_type"], "Q8_0");
}

#[test]
fn wrong_requests_are_refused() {
    let bench = |args: &[&str]| output(command(&[&["bench"], args].concat()));
    fails(bench(&["-p", "0", "-n", "0"]), 2, &["nothing to measure"]);
    fails(bench(&["--shape", "huge"]), 2, &["\"huge\" is none", "Llama-3.2-1B"]);
    fails(bench(&["--shape", "tiny", "--quant", "Q7"]), 2, &["Q7", "Q4_K_M"]);
    fails(bench(&["--shape", "tiny", "-m", "x.gguf"]), 2, &["--shape"]);
    fails(bench(&["--quant", "Q4_0"]), 2, &["--shape"]);
    fails(bench(&["--shape", "tiny", "-d", "16300"]), 2, &["pp512 @ d16300", "16812 positions", "16384"]);
    fails(bench(&["--shape", "tiny", "-r", "0"]), 2, &["0"]);
    fails(bench(&["--shape", "tiny", "-p", "many"]), 2, &["many"]);
    fails(bench(&["-m", "nowhere.gguf"]), 3, &["nowhere.gguf"]);
    fails(bench(&["--shape", "tiny", "--device", "99"]), 6, &["no adapter"]);
}

/// Matmuls of one format, whose time is a slope, attention of a prompt, and small ops: in every variant that the device has,
/// and no other.
#[test]
fn gpu_kernels_are_timed() {
    let cases: [(&str, &[(&str, u64)]); 6] = [
        ("matvec Q8_0", &[("matvec Q8_0, 1 row", 10), ("matvec Q8_0, 8 rows", 10)]),
        ("a prompt of", &[("attend_tiled, a prompt of 32 rows", 1), ("attend, a prompt of 32 rows", 1)]),
        ("64 x 128", &[("attend, decode, 64 x 128, by search", 1), ("attend, decode, 64 x 128, by list", 1)]),
        ("pointwise", &[("pointwise, SiLU of 4096", 1), ("pointwise, GELU by erf of 4096", 1)]),
        ("rope, 32", &[("rope, 32 heads", 1)]),
        ("kv_blocks", &[("kv_blocks, copies", 1)]),
    ];
    for (only, kernels) in cases {
        let device = ["bench", "kernels", "--device", "llvmpipe", "--quick", "--rounds", "1"];
        let rows = array(&ok(output(command(&[&device[..], &["--json", "--only", only]].concat()))));
        let names: Vec<_> =
            rows.iter().map(|row| (row["kernel"].as_str().unwrap(), row["dispatches"].as_u64().unwrap())).collect();
        assert_eq!(names, [&[("copy, four words a thread", 1)], kernels].concat());
        for row in &rows {
            assert!(row["device"].as_str().unwrap().contains("llvmpipe"), "{row}");
            assert!(row["gb_per_second"].as_f64().unwrap() > 0.0 && row["runs"].as_u64().unwrap() > 0, "{row}");
            let searched = row["kernel"].as_str().unwrap().ends_with("by search");
            assert_eq!(row["runs_that_searched"], if searched { row["runs"].clone() } else { 0.into() }, "{row}");
        }
    }
}
