//! How tokens are sampled, by options.

use super::*;

/// What an answer of 48 tokens is with these options.
fn sampled(options: &[&str]) -> Vec<u64> {
    let base = ["Once upon a time", "-n", "48", "--seed", "7", "--json"];
    ids(&json(output(with("run", Q8_0, &[&base, options].concat())))["ids"])
}

/// The same, hot enough for every option to matter.
fn hot(options: &[&str]) -> Vec<u64> {
    sampled(&[&["--temp", "1"], options].concat())
}

#[test]
fn every_option_changes_the_text() {
    let base = hot(&[]);
    assert_eq!(base.len(), 48);
    assert_ne!(sampled(&["--temperature", "2"]), base);
    for options in [
        &["--top-k", "2"][..],
        &["--top-p", "0.3"],
        &["--min-p", "0.9"],
        &["--typical", "0.2"],
        &["--repeat-penalty", "5"],
        &["--presence-penalty", "9"],
        &["--frequency-penalty", "9"],
        &["--dry-multiplier", "50", "--dry-base", "3", "--dry-allowed-length", "1"],
        &["--xtc-probability", "1", "--xtc-threshold", "0.05"],
        &["--mirostat", "2", "--mirostat-ent", "1", "--mirostat-lr", "0.5"],
        &["--logit-bias", "472=-100", "--logit-bias", "458=3"],
    ] {
        assert_ne!(hot(options), base, "{options:?}");
    }
    let penalty = ["--presence-penalty", "9", "--repeat-last-n"];
    assert_ne!(hot(&[&penalty[..], &["1"]].concat()), hot(&[&penalty[..], &["64"]].concat()));
    // What is off changes nothing.
    for options in [
        &["--typical", "1", "--repeat-last-n", "9"][..],
        &["--dry-base", "3", "--dry-penalty-last-n", "5"],
        &["--xtc-threshold", "0.3"],
        &["--mirostat", "0", "--mirostat-tau", "1", "--mirostat-eta", "0.5"],
    ] {
        assert_eq!(hot(options), base, "{options:?}");
    }
}

#[test]
fn a_bias_forces_a_token() {
    assert_eq!(sampled(&["--temp", "0", "--logit-bias", "99=1000"]), [99; 48]);
}

#[test]
fn values_out_of_range_are_named() {
    for (options, words) in [
        (&["--typical", "0"][..], "typical: 0; more than 0, at most 1 works"),
        (&["--repeat-penalty", "0"], "repeat penalty: 0; 0.01 to 10 works"),
        (&["--presence-penalty", "-11"], "presence penalty: -11; -10 to 10 works"),
        (&["--frequency-penalty", "nan"], "frequency penalty: NaN; -10 to 10 works"),
        (&["--repeat-last-n", "5000"], "repeat last n: 5000; 0 to 4096 works"),
        (&["--dry-multiplier", "-1"], "dry multiplier: -1; 0 to 100 works"),
        (&["--dry-base", "0.5"], "dry base: 0.5; 1 to 100 works"),
        (&["--xtc-probability", "2"], "xtc probability: 2; 0 to 1 works"),
        (&["--xtc-threshold", "-1"], "xtc threshold: -1; 0 to 1 works"),
        (&["--mirostat", "1"], "0 (off) and 2 work"),
        (&["--mirostat", "2", "--mirostat-ent", "0"], "mirostat ent: 0; more than 0, at most 100 works"),
        (&["--mirostat", "2", "--mirostat-lr", "2"], "mirostat eta: 2; 0 to 1 works"),
        (&["--logit-bias", "13"], "13=-2.5"),
        (&["--logit-bias", "13=inf"], "13=-2.5"),
        (&["--logit-bias", "512=1"], "token 512; the vocabulary has 512"),
        (&["--logit-bias", "5=1", "--logit-bias", "5=2"], "token 5 twice"),
        (&["--top-k", "-1"], "-1"),
    ] {
        fails(output(with("run", Q8_0, &[&["x"], options].concat())), 2, &[words]);
    }
}

#[test]
fn cpu_and_gpu_report_probabilities() {
    let answer = |device| {
        let mut run =
            command(&["run", "Once upon a time", "-n", "30", "--temp", "0", "--json", "--logprobs", "4", "-m"]);
        run.arg(data(F32)).args(["--device", device, "--numerics", "exact"]);
        json(output(run))
    };
    let cpu = answer("cpu");
    let reported = cpu["logprobs"].as_array().unwrap();
    assert_eq!(reported.iter().map(|l| l["id"].as_u64().unwrap()).collect::<Vec<_>>(), ids(&cpu["ids"]));
    let text: Vec<u64> = reported.iter().flat_map(|l| ids(&l["bytes"])).collect();
    let text = String::from_utf8(text.into_iter().map(|b| b as u8).collect()).unwrap();
    assert_eq!(text, cpu["text"].as_str().unwrap());
    for entry in reported {
        // What is sampled greedily is the most likely.
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["id"], &top[0]["logprob"]), (4, &entry["id"], &entry["logprob"]));
        let logprobs: Vec<f64> = top.iter().map(|l| l["logprob"].as_f64().unwrap()).collect();
        assert!(logprobs.is_sorted_by(|a, b| a >= b) && logprobs[0] <= 1e-6, "{logprobs:?}");
        assert!(logprobs.iter().map(|l| l.exp()).sum::<f64>() <= 1.0 + 1e-5);
    }
    for (cpu, gpu) in reported.iter().zip(answer("gpu")["logprobs"].as_array().unwrap()) {
        for (cpu, gpu) in cpu["top_logprobs"].as_array().unwrap().iter().zip(gpu["top_logprobs"].as_array().unwrap()) {
            assert_eq!(cpu["id"], gpu["id"]);
            let off = cpu["logprob"].as_f64().unwrap() - gpu["logprob"].as_f64().unwrap();
            assert!(off.abs() < 1e-3, "{cpu} {gpu}");
        }
    }
    fails(output(with("run", Q8_0, &["x", "--logprobs", "4"])), 2, &["--json"]);
    fails(output(with("run", Q8_0, &["x", "--json", "--logprobs", "21"])), 2, &["21"]);
}
