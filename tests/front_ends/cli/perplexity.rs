//! `wgslm perplexity`.

use serde_json::Value;

use super::{F32, Q8_0, command, fails, json, ok, output, tempdir, text};
use wgslm_test::{data, data_json};

const CPU: [&str; 4] = ["--device", "cpu", "--numerics", "exact"];

fn perplexity(model: &str, args: &[&str]) -> std::process::Output {
    let mut command = command(&["perplexity", "-m"]);
    command.arg(data(model)).args(CPU).args(args);
    output(command)
}

fn prose() -> String {
    data("text/stories.txt").to_str().unwrap().to_owned()
}

/// The reference has the likelihood of each token of two texts. A chunk of a text's length counts its second half; with the
/// stride of all but its first token, every token after that.
#[test]
fn likelihoods_are_the_references() {
    let folder = tempdir("perplexity");
    for reference in data_json("stories/nll.json").as_array().unwrap() {
        let path = folder.join("text");
        std::fs::write(&path, reference["text"].as_str().unwrap()).unwrap();
        let nll: Vec<f64> = reference["nll"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        let length = (nll.len() + 1).to_string();
        let mean = |nll: &[f64]| nll.iter().sum::<f64>() / nll.len() as f64;
        let stride = nll.len().to_string();
        for (args, expected) in [(&[][..], &nll[nll.len().div_ceil(2)..]), (&["--stride", &stride], &nll[..])] {
            let all = [&["-f", path.to_str().unwrap(), "-c", &length, "--json"], args].concat();
            let found = json(perplexity(F32, &all));
            assert_eq!(found["tokens"], expected.len());
            let error = found["nll"].as_f64().unwrap() / mean(expected) - 1.0;
            assert!(error.abs() < 1e-5, "{}: {} for {}", reference["name"], found["nll"], mean(expected));
        }
    }
}

#[test]
fn a_model_is_compared_with_saved_logits() {
    let path = tempdir("kl").join("base.logits");
    let base = path.to_str().unwrap();
    let text_file = prose();
    let made = json(perplexity(
        F32,
        &["-f", &text_file, "-c", "128", "--chunks", "3", "--kl-divergence-base", base, "--json"],
    ));
    let compared = |model: &str, more: &[&str]| {
        json(perplexity(model, &[&["--kl-divergence-base", base, "--kl-divergence", "--json"], more].concat()))
    };
    // Against itself: only the rounding to 16 bits.
    let own = compared(F32, &[]);
    assert_eq!(own["tokens"], 3 * 63);
    assert!((own["nll"].as_f64().unwrap() - made["nll"].as_f64().unwrap()).abs() < 1e-9);
    assert!((own["base"]["nll"].as_f64().unwrap() - made["nll"].as_f64().unwrap()).abs() < 1e-3);
    assert!(own["kl_divergence"]["max"].as_f64().unwrap() < 1e-4, "{own}");
    assert!(own["same_top"]["mean"].as_f64().unwrap() > 0.98);
    // With 8 bits a weight, and with two: further and further.
    let kl = |found: &Value| found["kl_divergence"]["mean"].as_f64().unwrap();
    let (eight, four) = (compared(Q8_0, &[]), compared(F32, &["--quantize", "Q4_0"]));
    assert!(kl(&own) < kl(&eight) && kl(&eight) < 0.2 * kl(&four) && kl(&four) < 0.5, "{eight} {four}");
    let words = ok(perplexity(Q8_0, &["--kl-divergence-base", base, "--kl-divergence"]));
    for word in ["perplexity", "of the base", "KL divergence", "max", "same top token"] {
        assert!(words.contains(word), "{word:?} is missing in: {words}");
    }

    // A file that is cut off, or of another model.
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    fails(perplexity(F32, &["--kl-divergence-base", base, "--kl-divergence"]), 5, &["do not hold 3 chunks"]);
    std::fs::write(&path, b"GGUF").unwrap();
    fails(perplexity(F32, &["--kl-divergence-base", base, "--kl-divergence"]), 5, &["too short"]);
}

#[test]
fn cpu_and_gpu_quantise_weights_while_they_load() {
    // The same bits as a file that convert wrote, on both executors.
    let out = tempdir("quantize").join("q5_1.gguf");
    let source = data(F32);
    let convert = ["convert", source.to_str().unwrap(), "-t", "Q5_1", "-o", out.to_str().unwrap()];
    ok(output(command(&convert)));
    let run = |model: &str, more: &[&str]| {
        let args = ["run", "-m", model, "--temp", "0", "-n", "24", "--raw", "Once upon a time"];
        ok(output(command(&[&args, more].concat())))
    };
    for device in ["cpu", "gpu"] {
        let ours = run(source.to_str().unwrap(), &["--device", device, "--quantize", "q5_1"]);
        assert_eq!(ours, run(out.to_str().unwrap(), &["--device", device]), "{device}");
    }
    let bench = ["bench", "-m", source.to_str().unwrap(), "--device", "cpu", "-p", "4", "-n", "2", "-r", "1"];
    let table = ok(output(command(&[&bench[..], &["--quantize", "Q4_0"]].concat())));
    assert!(table.contains("Q4_0 |"), "{table}");
    fails(output(command(&[&bench[..], &["--quantize", "Q9"]].concat())), 2, &["Q9", "Q4_K_M"]);
}

#[test]
fn wrong_requests_are_refused() {
    let text_file = prose();
    fails(perplexity(F32, &[]), 2, &["--file"]);
    fails(perplexity(F32, &["-f", "nowhere.txt"]), 2, &["nowhere.txt"]);
    fails(perplexity(F32, &["-f", &text_file, "-c", "1024"]), 2, &["1024", "was made for 512"]);
    fails(perplexity(F32, &["-f", &text_file, "-c", "64", "--stride", "64"]), 2, &["--stride 64"]);
    fails(perplexity(F32, &["--kl-divergence"]), 2, &["--kl-divergence-base"]);
    let short = tempdir("short").join("text");
    std::fs::write(&short, "Once upon a time").unwrap();
    fails(perplexity(F32, &["-f", short.to_str().unwrap()]), 2, &["the text has 7 tokens", "-c"]);
    std::fs::write(&short, [0xff, 0xfe]).unwrap();
    fails(perplexity(F32, &["-f", short.to_str().unwrap()]), 5, &["UTF-8"]);
    let out = output(command(&["perplexity", "--help"]));
    assert!(text(&out.stdout).contains("--stride"));
}
