//! Models by name, from a hub on this machine that fails in every way that a real one can.

pub(crate) mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use wgslm::Error;
use wgslm::hub::{Hub, Local, Patience, Progress, Reference, Token};
use wgslm_test::data;

use server::{COMMIT, FakeHub, Fault, git_hash, sha256};

const NAME: &str = "org/repo";
const GGUF: &str = "stories-Q8_0.gguf";

/// An empty folder of this test.
fn folder(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hub-{name}"));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// A hub with a cache of its own, that waits for nobody long.
fn hub(fake: &FakeHub, home: &Path) -> Hub {
    with_vars(fake, home, &[])
}

fn with_vars(fake: &FakeHub, home: &Path, vars: &[(&str, &str)]) -> Hub {
    let patience = Patience { stall: Duration::from_millis(500), tries: 3, pause: Duration::from_millis(1) };
    let var = |name: &str| match name {
        "HF_ENDPOINT" => Some(fake.address.clone().into()),
        "HOME" => Some(home.as_os_str().to_owned()),
        _ => vars.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()),
    };
    Hub::from_vars(&var).unwrap().patience(patience)
}

fn reference(text: &str, fake: &FakeHub) -> Reference {
    Reference::parse(text, &fake.address).unwrap().unwrap_or_else(|| panic!("{text} is no reference"))
}

fn pull(hub: &Hub, fake: &FakeHub, name: &str) -> wgslm::Result<Local> {
    let plan = hub.plan(&reference(name, fake))?;
    hub.download(&plan, &mut |_| Ok(()))
}

/// `wgslm ARGS` with that hub, and its home in `home`.
fn command(fake: &FakeHub, home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wgslm"));
    command.args(args).env_clear().env("HOME", home).env("HF_ENDPOINT", &fake.address);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn ran(mut command: Command) -> Output {
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn ok(output: Output) -> String {
    assert!(output.status.success(), "{:?} {}", output.status, text(&output.stderr));
    text(&output.stdout).to_owned()
}

fn fails(output: &Output, code: i32, words: &[&str]) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{word:?} is missing in: {stderr}");
    }
}

fn model() -> Vec<u8> {
    fs::read(data("stories/stories-q8_0.gguf")).unwrap()
}

/// A file that is not a model, of so many bytes.
fn noise(len: usize) -> Vec<u8> {
    let mut x = 1u32;
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn blob(home: &Path, bytes: &[u8]) -> PathBuf {
    home.join(".cache/huggingface/hub/models--org--repo/blobs").join(sha256(bytes))
}

fn incomplete(home: &Path, bytes: &[u8]) -> PathBuf {
    let blob = blob(home, bytes);
    blob.with_file_name(format!("{}.incomplete", sha256(bytes)))
}

/// Files of a folder, hidden ones too, by their paths.
fn all_files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).into_iter().flatten().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => found.push(entry.path().strip_prefix(folder).unwrap().to_string_lossy().replace('\\', "/")),
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_model_by_its_name_answers() {
    let home = folder("run");
    let fake = FakeHub::new(&[(GGUF, &model()), ("mmproj-stories-F16.gguf", &noise(100)), ("README.md", b"#")]);
    let args = ["The dog", "-n", "20", "--temp", "0", "--device", "cpu"];
    let local = data("stories/stories-q8_0.gguf").display().to_string();
    let expected = ok(ran(command(&fake, &home, &[&["run", "-m", &local], &args[..]].concat())));
    assert_eq!(fake.connections(), 0, "a file needs no hub");
    let address = format!("{}/{NAME}/resolve/main/{GGUF}", fake.address);
    for (model, downloads) in [
        (NAME, true),
        ("org/repo:Q8_0", false),
        ("hf.co/org/repo:q8_0", false),
        (&address, false),
        ("repo:Q8_0", false),
    ] {
        let positional = [&["run", model], &args[..]].concat();
        let option = [&["run", "-m", model], &args[..]].concat();
        for args in [positional, option] {
            let output = ran(command(&fake, &home, &args));
            let stderr = text(&output.stderr).to_owned();
            assert_eq!(ok(output), expected, "{args:?}");
            if fake.sent() == 0 {
                assert_eq!(stderr, "", "nothing to say where nothing is downloaded");
            } else {
                assert!(downloads && args[0] == "run" && args[1] == NAME);
                for words in [
                    "org/repo:Q8_0: stories-Q8_0.gguf of commit 01234567, 344.5 kB",
                    "fits the memory",
                    "downloading from 127.0.0.1",
                ] {
                    assert!(stderr.contains(words), "{words:?} in {stderr}");
                }
                assert!(!stderr.contains('\x1b') && !stderr.contains('\r'), "no bar without a terminal: {stderr:?}");
            }
        }
    }
    // Once the hub was asked, and once for the file; its address has the commit.
    let paths: Vec<String> = fake.seen().iter().map(|seen| seen.path.clone()).collect();
    assert_eq!(
        paths,
        ["/api/models/org/repo/revision/main?blobs=true".to_owned(), format!("/org/repo/resolve/{COMMIT}/{GGUF}")]
    );
    // What another command makes of a name.
    let shown = ok(ran(command(&fake, &home, &["show", NAME])));
    assert!(shown.contains("architecture   llama"), "{shown}");
    assert_eq!(ok(ran(command(&fake, &home, &["tokenize", "-m", NAME]))), "\n");
}

#[test]
fn the_cache_is_laid_out_as_python_s() {
    let home = folder("layout");
    let (weights, config) = (noise(5000), br#"{"model_type": "x"}"#);
    let fake = FakeHub::new(&[("sub dir/m-Q4_0.gguf", &weights), ("config.json", config)]);
    let printed = ok(ran(command(&fake, &home, &["pull", NAME])));
    let cache = home.join(".cache/huggingface/hub");
    let snapshot = cache.join(format!("models--org--repo/snapshots/{COMMIT}"));
    let path = snapshot.join("sub dir/m-Q4_0.gguf");
    assert_eq!(printed, format!("{}\n", path.display()));
    assert_eq!(fs::read(&path).unwrap(), weights);
    let hash = sha256(&weights);
    assert_eq!(
        all_files(&cache),
        [
            format!(".locks/models--org--repo/{hash}.lock"),
            format!("models--org--repo/blobs/{hash}"),
            "models--org--repo/refs/main".to_owned(),
            format!("models--org--repo/snapshots/{COMMIT}/sub dir/m-Q4_0.gguf"),
        ]
    );
    assert_eq!(fs::read_to_string(cache.join("models--org--repo/refs/main")).unwrap(), COMMIT);
    #[cfg(unix)]
    assert_eq!(fs::read_link(&path).unwrap().to_str().unwrap(), format!("../../../blobs/{hash}"));
    // Once more: nothing is sent, and nothing is stored twice.
    fake.sent();
    assert_eq!(ok(ran(command(&fake, &home, &["pull", NAME]))), printed);
    assert_eq!(fake.sent(), 0);
    // Where it is said to be elsewhere.
    for (name, value, at) in
        [("HF_HUB_CACHE", "a", "a"), ("HF_HOME", "b", "b/hub"), ("XDG_CACHE_HOME", "c", "c/huggingface/hub")]
    {
        let mut command = command(&fake, &home, &["pull", NAME]);
        command.env(name, home.join(value));
        ok(ran(command));
        assert!(home.join(at).join("models--org--repo/refs/main").exists(), "{name}");
    }
}

#[test]
fn models_are_listed_and_removed() {
    let home = folder("names");
    let files: [(&str, Vec<u8>); 3] =
        [("m-Q8_0.gguf", noise(9000)), ("m-Q4_K_M.gguf", noise(5000)), ("tiny.gguf", noise(700))];
    let fake = FakeHub::new(&files.each_ref().map(|(name, bytes)| (*name, &bytes[..])));
    fails(&ran(command(&fake, &home, &["list"])), 0, &["no models", "wgslm pull"]);
    fails(&ran(command(&fake, &home, &["rm", "-y", NAME])), 3, &["org/repo is not in the cache", "wgslm list"]);
    for name in ["org/repo", "org/repo:Q8_0", "org/other:Q8_0", "org/repo:tiny"] {
        ok(ran(command(&fake, &home, &["pull", name])));
    }
    let listed = || -> Vec<(String, u64)> {
        let json = ok(ran(command(&fake, &home, &["list", "--json"])));
        let models: serde_json::Value = serde_json::from_str(&json).unwrap();
        let of = |model: &serde_json::Value| {
            assert!(
                Path::new(model["path"].as_str().unwrap()).exists()
                    && model["modified"].as_u64().unwrap() > 1_700_000_000
            );
            assert_eq!(model["commit"], COMMIT);
            (model["name"].as_str().unwrap().to_owned(), model["bytes"].as_u64().unwrap())
        };
        models.as_array().unwrap().iter().map(of).collect()
    };
    let pair = |name: &str, bytes| (name.to_owned(), bytes);
    let all = [
        pair("org/other:Q8_0", 9000),
        pair("org/repo:Q4_K_M", 5000),
        pair("org/repo:Q8_0", 9000),
        pair("org/repo:tiny", 700),
    ];
    assert_eq!(listed(), all);
    let table = ok(ran(command(&fake, &home, &["ls"])));
    assert!(table.starts_with("NAME") && table.contains("org/repo:Q4_K_M     5.0 kB  just now"), "{table}");
    // A listed name is a name.
    for (name, _) in all {
        let model = hub(&fake, &home).find(&reference(&name, &fake)).unwrap().unwrap();
        assert!(model.path.exists(), "{name}");
    }
    fails(&ran(command(&fake, &home, &["rm", "org/repo:Q8_0"])), 2, &["--yes"]);
    let gone = ran(command(&fake, &home, &["rm", "--yes", "org/repo:Q8_0"]));
    fails(&gone, 0, &["org/repo:Q8_0 is removed: 9.0 kB more free"]);
    assert_eq!(
        listed().iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["org/other:Q8_0", "org/repo:Q4_K_M", "org/repo:tiny"]
    );
    fails(&ran(command(&fake, &home, &["rm", "-y", "org/repo:Q8_0"])), 3, &["not in the cache"]);
    ok(ran(command(&fake, &home, &["rm", "-y", "org/repo"])));
    assert_eq!(listed().len(), 1);
    assert!(!home.join(".cache/huggingface/hub/models--org--repo").exists());
    ok(ran(command(&fake, &home, &["rm", "-y", "other:Q8_0"])));
    assert_eq!(listed(), []);
}

/// Ends a process, and waits for it.
fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_download_that_is_killed_goes_on_where_it_was() {
    let bytes = noise(1_500_000);
    let len = bytes.len() as u64;
    let (mut most, mut places) = (0.0f64, 0);
    for i in 0..20u64 {
        let at = match i {
            0 => 0,
            1 => 1,
            19 => len - 1,
            i => i * len / 20 + i * 37,
        };
        let home = folder("killed");
        let fake = FakeHub::new(&[("m-Q8_0.gguf", &bytes)]);
        fake.fault(Fault::Hang(at));
        let child = command(&fake, &home, &["pull", NAME]).spawn().unwrap();
        let part = incomplete(&home, &bytes);
        let deadline = Instant::now() + Duration::from_secs(60);
        // The process has what was sent, and waits for more.
        while fs::metadata(&part).map_or(0, |there| there.len()) < at
            || !fake.seen().iter().any(|seen| seen.path.contains("/resolve/"))
        {
            assert!(Instant::now() < deadline, "nothing came up to {at}");
            std::thread::sleep(Duration::from_millis(2));
        }
        kill(child);
        assert!(!blob(&home, &bytes).exists(), "an incomplete file has no name");
        assert!(hub(&fake, &home).find(&reference(NAME, &fake)).unwrap().is_none());
        let path = ok(ran(command(&fake, &home, &["pull", NAME])));
        assert_eq!(fs::read(path.trim()).unwrap(), bytes, "killed at {at}");
        assert!(!part.exists());
        let sent = fake.sent() as f64 / len as f64;
        most = most.max(sent);
        places += 1;
    }
    println!("{places} kills: at most {:.2} % of the bytes were sent", most * 100.0);
    assert!(most <= 1.05, "{most}");
}

#[test]
fn connections_that_break_off_are_made_again() {
    let bytes = noise(900_000);
    let len = bytes.len() as u64;
    let home = folder("broken");
    let fake = FakeHub::new(&[("m-Q8_0.gguf", &bytes)]);
    for at in (1..12).map(|i| i * len / 12) {
        fake.fault(Fault::Cut(at));
    }
    let local = pull(&hub(&fake, &home), &fake, NAME).unwrap();
    assert_eq!(fs::read(local.path).unwrap(), bytes);
    assert!(fake.sent() as f64 <= 1.05 * len as f64);
    // A server that stays silent is as good as gone.
    let home = folder("stalled");
    fake.fault(Fault::Hang(len / 3));
    fake.fault(Fault::Hang(len / 2));
    let began = Instant::now();
    let local = pull(&hub(&fake, &home), &fake, NAME).unwrap();
    assert!(began.elapsed() > Duration::from_millis(900), "it waited twice");
    assert_eq!(fs::read(local.path).unwrap(), bytes);
    assert!(fake.sent() as f64 <= 1.05 * len as f64);
    // One that asks to come again later.
    let home = folder("busy");
    fake.fault(Fault::Status(503, ""));
    fake.fault(Fault::Status(429, ""));
    assert_eq!(fs::read(pull(&hub(&fake, &home), &fake, NAME).unwrap().path).unwrap(), bytes);
    // One that never gives more: an error that says what is kept, and the next try goes on from there.
    let home = folder("hopeless");
    fake.always(Some(Fault::Cut(len / 4)));
    let error = pull(&hub(&fake, &home), &fake, NAME).unwrap_err();
    assert_eq!(error.code(), "network");
    let said = error.to_string();
    assert!(said.contains("225000 of 900000 bytes are kept") && said.contains("broke off"), "{said}");
    fake.always(None);
    fake.sent();
    assert_eq!(fs::read(pull(&hub(&fake, &home), &fake, NAME).unwrap().path).unwrap(), bytes);
    assert_eq!(fake.sent(), len - len / 4);
    // And one that is always silent.
    let home = folder("silent");
    fake.always(Some(Fault::Hang(0)));
    let error = pull(&hub(&fake, &home), &fake, NAME).unwrap_err().to_string();
    assert!(error.contains("nothing came for"), "{error}");
}

#[test]
fn wrong_bytes_get_no_name() {
    let bytes = noise(300_000);
    let len = bytes.len() as u64;
    let fake = FakeHub::new(&[("m-Q8_0.gguf", &bytes)]);
    let refused = |name: &str, fault: Fault, code: &str, words: &str| {
        let home = folder(name);
        fake.always(Some(fault.clone()));
        let error = pull(&hub(&fake, &home), &fake, NAME).unwrap_err();
        fake.always(None);
        assert_eq!(error.code(), code, "{fault:?}: {error}");
        assert!(error.to_string().contains(words), "{fault:?}: {error}");
        assert!(!blob(&home, &bytes).exists() && hub(&fake, &home).list().unwrap().is_empty(), "{fault:?}");
        // When the hub is well again, so is the model.
        assert_eq!(fs::read(pull(&hub(&fake, &home), &fake, NAME).unwrap().path).unwrap(), bytes, "{fault:?}");
    };
    refused("flip-first", Fault::Flip(0), "malformed", "its hash is");
    refused("flip-last", Fault::Flip(len - 1), "malformed", "is not kept");
    refused("short", Fault::Length(len - 1), "malformed", "it has 299999 bytes, and should have 300000");
    refused("long", Fault::Length(len + 1), "malformed", "it has 300001 bytes");
    refused("endless", Fault::Endless, "malformed", "goes on after the 300000 bytes");
    refused("range", Fault::WrongRange, "network", "other bytes than those");
    refused("gone", Fault::Status(404, "EntryNotFound"), "not_found", "no such file");
    refused("teapot", Fault::Status(418, ""), "network", "418");
    // Through the program: exit code 5.
    fake.always(Some(Fault::Flip(7)));
    let home = folder("flip-run");
    fails(&ran(command(&fake, &home, &["run", NAME, "Hi"])), 5, &["m-Q8_0.gguf: its hash is", "should be"]);
    assert!(!incomplete(&home, &bytes).exists(), "damaged bytes are no beginning");
}

#[test]
fn a_beginning_of_something_else_is_dropped() {
    let bytes = noise(200_000);
    let fake = FakeHub::new(&[("m-Q8_0.gguf", &bytes)]);
    let begun = |name: &str, beginning: &[u8]| {
        let home = folder(name);
        fs::create_dir_all(incomplete(&home, &bytes).parent().unwrap()).unwrap();
        fs::write(incomplete(&home, &bytes), beginning).unwrap();
        fake.sent();
        let local = pull(&hub(&fake, &home), &fake, NAME).unwrap();
        assert_eq!(fs::read(local.path).unwrap(), bytes, "{name}");
        fake.sent()
    };
    assert_eq!(begun("right", &bytes[..150_000]), 50_000);
    assert_eq!(begun("whole", &bytes), 0);
    assert_eq!(begun("other", &[1; 150_000]), 250_000, "the rest, then all of it");
    assert_eq!(begun("other-whole", &[1; 200_000]), 200_000);
    assert_eq!(begun("longer", &noise(200_001)), 200_000);
    // A server without ranges sends everything.
    fake.fault(Fault::NoRange);
    assert_eq!(begun("no-range", &bytes[..150_000]), 200_000);
}

#[test]
fn a_token_goes_to_its_hub_alone() {
    let bytes = noise(40_000);
    let fake = FakeHub::new(&[("m-Q8_0.gguf", &bytes)]);
    let elsewhere = FakeHub::new(&[("m-Q8_0.gguf", &bytes)]);
    let home = folder("token");
    let secret = "hf_TopSecretToken0123";
    let private = |fake: &FakeHub, from: usize| {
        let seen = fake.seen();
        seen[from..].iter().map(|seen| seen.headers.get("authorization").cloned()).collect::<Vec<_>>()
    };
    let bearer = Some(format!("Bearer {secret}"));
    let with_token = with_vars(&fake, &home, &[("HF_TOKEN", secret)]);
    fake.fault(Fault::Redirect(format!("{}/cdn/m-Q8_0.gguf?X-Amz-Signature=alsosecret", elsewhere.address)));
    let local = pull(&with_token, &fake, NAME).unwrap();
    assert_eq!(fs::read(&local.path).unwrap(), bytes);
    assert_eq!(private(&fake, 0), [bearer.clone(), bearer.clone()]);
    assert_eq!(private(&elsewhere, 0), [None]);
    assert!(!format!("{with_token:?}").contains(secret) && !format!("{:?}", Token::new(secret)).contains(secret));
    // Back again: to the hub it goes, over the other host or not.
    let home = folder("token-back");
    fake.fault(Fault::Redirect(format!("{}/cdn/m-Q8_0.gguf", elsewhere.address)));
    elsewhere.fault(Fault::Redirect(format!("{}/cdn/m-Q8_0.gguf", fake.address)));
    let before = fake.seen().len();
    pull(&with_vars(&fake, &home, &[("HF_TOKEN", secret)]), &fake, NAME).unwrap();
    assert_eq!(private(&fake, before), [bearer.clone(), bearer.clone(), bearer.clone()]);
    assert!(private(&elsewhere, 0).iter().all(Option::is_none));
    // From a file, as hf auth login leaves it; and not where it shall not be used.
    let home = folder("token-file");
    fs::create_dir_all(home.join(".cache/huggingface")).unwrap();
    fs::write(home.join(".cache/huggingface/token"), format!("{secret}\n")).unwrap();
    let before = fake.seen().len();
    pull(&hub(&fake, &home), &fake, NAME).unwrap();
    assert_eq!(private(&fake, before), [bearer.clone(), bearer]);
    let before = fake.seen().len();
    pull(
        &with_vars(&fake, &folder("token-off"), &[("HF_TOKEN", secret), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]),
        &fake,
        NAME,
    )
    .unwrap();
    assert_eq!(private(&fake, before), [None, None]);
    // Addresses that a redirect came to are shown without what they are signed by, and nothing shows the token.
    elsewhere.always(Some(Fault::Status(403, "")));
    fake.always(Some(Fault::Redirect(format!("{}/cdn/m-Q8_0.gguf?X-Amz-Signature=alsosecret", elsewhere.address))));
    let mut command = command(&fake, &folder("token-shown"), &["pull", NAME]);
    command.env("HF_TOKEN", secret);
    let output = ran(command);
    fails(&output, 4, &["403"]);
    for stream in [&output.stdout, &output.stderr] {
        assert!(!text(stream).contains("ecret"), "{}", text(stream));
    }
}

#[test]
fn redirects_have_limits() {
    let fake = FakeHub::new(&[("m-Q8_0.gguf", &noise(100))]);
    let refused = |to: &str| {
        fake.always(Some(Fault::Redirect(to.to_owned())));
        pull(&hub(&fake, &folder("redirects")), &fake, NAME).unwrap_err().to_string()
    };
    assert!(refused("/again/m-Q8_0.gguf").contains("more than 10 redirects"));
    assert!(refused("file:///etc/passwd").contains("no address that can be asked"));
    assert!(refused("").contains("redirects to nowhere"));
    assert!(!refused("ftp://x/y?key=secret").contains("secret"));
}

#[test]
fn refusals_say_what_helps() {
    let home = folder("refusals");
    let fake = FakeHub::new(&[("m-Q8_0.gguf", &noise(100))]);
    let asked = |token: bool| {
        let mut command = command(&fake, &home, &["run", NAME, "Hi"]);
        if token {
            command.env("HF_TOKEN", "hf_x");
        }
        ran(command)
    };
    fake.info(401, "GatedRepo", "{}");
    fails(&asked(false), 4, &["org/repo", "gated", "accept its terms", "HF_TOKEN"]);
    fake.info(403, "GatedRepo", "{}");
    fails(&asked(true), 4, &["gated", "the account that the token is of"]);
    fake.info(401, "RepoNotFound", "{}");
    fails(&asked(false), 3, &["no such repository, or it is private", "spelling"]);
    fake.info(404, "RepoNotFound", "{}");
    fails(&asked(true), 3, &["no such repository"]);
    fake.info(404, "RevisionNotFound", "{}");
    fails(&asked(true), 3, &["revision"]);
    fake.info(401, "", "{}");
    fails(&asked(true), 4, &["the token may be wrong"]);
    fake.info(200, "", "<html>not JSON</html>");
    fails(&asked(false), 4, &["no JSON"]);
    fake.info(200, "", r#"{"sha": "../../x", "siblings": []}"#);
    fails(&asked(false), 4, &["names no commit"]);
    // A word with a slash that was meant as a prompt.
    fake.info(404, "RepoNotFound", "{}");
    fails(&ran(command(&fake, &home, &["run", "and/or"])), 3, &["as a prompt: wgslm run -p and/or"]);
    // Nobody there.
    let mut nobody = command(&fake, &home, &["pull", NAME]);
    nobody.env("HF_ENDPOINT", "http://127.0.0.1:9");
    fails(&ran(nobody), 4, &["connection refused"]);
    let mut wrong = command(&fake, &home, &["pull", NAME]);
    wrong.env("HF_ENDPOINT", "huggingface.co");
    fails(&ran(wrong), 2, &["HF_ENDPOINT", "an address works"]);
}

#[test]
fn what_a_hub_says_is_not_trusted() {
    let home = folder("hostile");
    let fake = FakeHub::new(&[("m-Q8_0.gguf", &noise(100))]);
    let hash = "0".repeat(64);
    let said = |files: &str| {
        fake.info(200, "", format!(r#"{{"sha": "{COMMIT}", "siblings": [{files}]}}"#));
        pull(&hub(&fake, &home), &fake, NAME).unwrap_err()
    };
    let file = |name: &str, size: &str, hash: &str| {
        format!(r#"{{"rfilename": "{name}", "lfs": {{"sha256": "{hash}", "size": {size}, "pointerSize": 1}}}}"#)
    };
    for name in [
        "../m-Q8_0.gguf",
        "/etc/m-Q8_0.gguf",
        "a/../../m-Q8_0.gguf",
        "a\\\\..\\\\m-Q8_0.gguf",
        "C:m-Q8_0.gguf",
        "m\\u0000-Q8_0.gguf",
        "a//m-Q8_0.gguf",
    ] {
        let error = said(&file(name, "100", &hash));
        assert!(error.to_string().contains("neither GGUF files"), "{name}: {error}");
    }
    for wrong in ["../../x", "", &"z".repeat(64), &"0".repeat(63), &"0".repeat(65)] {
        let error = said(&file("m-Q8_0.gguf", "100", wrong));
        assert!(error.to_string().contains("gives no hash of"), "{wrong}: {error}");
    }
    assert!(said(r#"{"rfilename": "m-Q8_0.gguf", "size": 5}"#).to_string().contains("gives no hash"));
    for wrong in ["-1", "1e30", "\"5\"", "null", "18446744073709551616", "18446744073709551615"] {
        assert_eq!(said(&file("m-Q8_0.gguf", wrong, &hash)).code(), "network", "{wrong}");
    }
    // Nothing was written, here or elsewhere.
    assert_eq!(all_files(&home), Vec::<String>::new());
    // Lists without end.
    let many = vec![r#"{"rfilename": "a.txt"}"#; 100_001].join(",");
    assert!(said(&many).to_string().contains("lists 100001 files"));
    fake.info(200, "", " ".repeat(40 << 20));
    let error = pull(&hub(&fake, &home), &fake, NAME).unwrap_err().to_string();
    assert!(error.contains("more than 33554432 bytes"), "{error}");
}

#[test]
fn a_full_disk_is_said() {
    let home = folder("full");
    let bytes = noise(50_000);
    let fake = FakeHub::new(&[("m-Q8_0.gguf", &bytes)]);
    let hash = sha256(&bytes);
    // More than any disk has: nothing is begun.
    fake.info(200, "", format!(r#"{{"sha": "{COMMIT}", "siblings": [{{"rfilename": "m-Q8_0.gguf", "lfs": {{"sha256": "{hash}", "size": 900000000000000000}}}}]}}"#));
    if cfg!(unix) {
        let output = ran(command(&fake, &home, &["pull", NAME]));
        fails(&output, 7, &["needs 900000000000000000 bytes more", "free on this disk", "wgslm rm"]);
        assert!(text(&output.stderr).contains("does NOT fit the memory"));
        assert_eq!(fake.sent(), 0);
    }
    // A disk that others fill meanwhile.
    #[cfg(target_os = "linux")]
    {
        let fake = FakeHub::new(&[("m-Q8_0.gguf", &bytes)]);
        let part = incomplete(&home, &bytes);
        fs::create_dir_all(part.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("/dev/full", &part).unwrap();
        fails(
            &ran(command(&fake, &home, &["pull", NAME])),
            7,
            &["no more on this disk", "what was downloaded is kept"],
        );
        fs::remove_file(&part).unwrap();
        assert!(ok(ran(command(&fake, &home, &["pull", NAME]))).contains("m-Q8_0.gguf"));
    }
}

#[test]
fn offline_opens_no_connection() {
    let home = folder("offline");
    let fake = FakeHub::new(&[("m-Q8_0.gguf", &model())]);
    let with = |args: &[&str], var: Option<&str>| {
        let mut command = command(&fake, &home, args);
        command.envs(var.map(|var| (var, "1")));
        ran(command)
    };
    let ways: [(&[&str], Option<&str>); 4] = [
        (&["--offline"], None),
        (&[], Some("HF_HUB_OFFLINE")),
        (&[], Some("TRANSFORMERS_OFFLINE")),
        (&[], Some("WGSLM_OFFLINE")),
    ];
    for (flag, var) in ways {
        for args in [
            &["run", NAME, "Hi"][..],
            &["pull", NAME],
            &["inspect", NAME],
            &["run", "-m", "https://example.org/x.gguf", "Hi"],
        ] {
            fails(&with(&[args, flag].concat(), var), 3, &["is not in the cache", "without --offline"]);
        }
    }
    assert_eq!(fake.connections(), 0);
    ok(with(&["pull", NAME], None));
    let before = fake.connections();
    let run = ["run", NAME, "The dog", "-n", "4", "--device", "cpu", "--offline"];
    assert!(!ok(with(&run, None)).is_empty());
    assert!(ok(with(&["pull", NAME, "--offline"], None)).contains("m-Q8_0.gguf"));
    assert_eq!(fake.connections(), before);
    // Seen from the system: no socket that leads anywhere, whatever for.
    let home_text = home.display().to_string();
    let log = home.join("trace");
    let traced = Command::new("strace")
        .args(["-f", "-e", "trace=network", "-o", log.to_str().unwrap(), env!("CARGO_BIN_EXE_wgslm")])
        .args(run)
        .env_clear()
        .env("HOME", home_text)
        .env("HF_ENDPOINT", &fake.address)
        .stdin(Stdio::null())
        .output();
    // Not everywhere there is strace, and not everywhere a process may be traced; where all is tested, it is and it may.
    match traced {
        Ok(output) if output.status.success() => {
            assert!(!output.stdout.is_empty());
            let calls = fs::read_to_string(log).unwrap();
            assert!(calls.contains("exited with 0"), "{calls}");
            let elsewhere: Vec<&str> =
                calls.lines().filter(|call| call.contains("socket(") && !call.contains("socket(AF_UNIX")).collect();
            assert!(elsewhere.is_empty() && !calls.contains("AF_INET"), "{elsewhere:?}");
        }
        other => assert!(std::env::var_os("CI").is_none(), "strace is needed: {other:?}"),
    }
}

#[test]
fn two_downloads_at_once_are_one() {
    let home = folder("two");
    let bytes = noise(400_000);
    let fake = FakeHub::new(&[("m-Q8_0.gguf", &bytes)]);
    fake.fault(Fault::Hang(100_000));
    let first = command(&fake, &home, &["pull", NAME]).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while fs::metadata(incomplete(&home, &bytes)).map_or(0, |there| there.len()) < 100_000 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(2));
    }
    // The second one waits; when the first is gone, it goes on from there.
    let (sender, said) = std::sync::mpsc::channel();
    let second = {
        let (hub, fake) = (hub(&fake, &home), fake.clone());
        std::thread::spawn(move || {
            let plan = hub.plan(&reference(NAME, &fake)).unwrap();
            hub.download(&plan, &mut |progress| {
                if let Progress::Waiting(file) = progress {
                    sender.send(file.to_owned()).unwrap();
                }
                Ok(())
            })
        })
    };
    assert_eq!(said.recv_timeout(Duration::from_secs(60)).unwrap(), "m-Q8_0.gguf");
    kill(first);
    let local = second.join().unwrap().unwrap();
    assert_eq!(fs::read(local.path).unwrap(), bytes);
    assert!(fake.sent() as f64 <= 1.05 * bytes.len() as f64);
}

#[test]
fn a_download_that_is_ended_goes_on_later() {
    let bytes = noise(4_000_000);
    let fake = FakeHub::new(&[("m-Q8_0.gguf", &bytes)]);
    let home = folder("ended");
    let hub = hub(&fake, &home);
    let plan = hub.plan(&reference(NAME, &fake)).unwrap();
    let mut before = 0;
    for end in [500_000, 2_000_000, 4_000_000] {
        let mut first = None;
        let ended = hub.download(&plan, &mut |progress| match progress {
            Progress::Bytes(have, _) => {
                first.get_or_insert(have);
                if have >= end { Err(Error::Model("enough".to_owned())) } else { Ok(()) }
            }
            Progress::Waiting(_) => Ok(()),
        });
        assert!(matches!(ended, Err(Error::Model(why)) if why == "enough"));
        assert!(first.unwrap() >= before, "it goes on where it ended: {first:?}");
        before = end;
    }
    assert_eq!(fs::read(pull(&hub, &fake, NAME).unwrap().path).unwrap(), bytes);
}

#[test]
fn split_files_and_folders_come_whole() {
    let fake = FakeHub::new(&[
        ("q8/m-Q8_0-00001-of-00002.gguf", &noise(700)),
        ("q8/m-Q8_0-00002-of-00002.gguf", &noise(800)),
        ("m-Q2_K.gguf", &noise(900)),
    ]);
    let home = folder("split");
    let local = pull(&hub(&fake, &home), &fake, NAME).unwrap();
    assert!(
        local.path.ends_with("q8/m-Q8_0-00001-of-00002.gguf")
            && local.path.with_file_name("m-Q8_0-00002-of-00002.gguf").exists()
    );
    assert_eq!(local.name, "org/repo:Q8_0");
    // A part that is gone makes the model one that is not here.
    fs::remove_file(local.path.with_file_name("m-Q8_0-00002-of-00002.gguf")).unwrap();
    assert!(hub(&fake, &home).find(&reference(NAME, &fake)).unwrap().is_none());
    fake.sent();
    pull(&hub(&fake, &home), &fake, NAME).unwrap();
    assert_eq!(fake.sent(), 0, "its blob was still there");

    // Safetensors, as a folder that answers.
    let source = data("stories/hf-float32");
    let names: Vec<String> = all_files(&source);
    let contents: Vec<Vec<u8>> = names.iter().map(|name| fs::read(source.join(name)).unwrap()).collect();
    let mut files: Vec<(&str, &[u8])> =
        names.iter().zip(&contents).map(|(name, bytes)| (name.as_str(), &bytes[..])).collect();
    files.extend([("pytorch_model.bin", &[1u8; 50][..]), ("README.md", b"#")]);
    let fake = FakeHub::new(&files);
    let home = folder("safetensors");
    let logits = |model: &str| {
        let out = home.join("out.npy");
        let args = ["logits", "-m", model, "--ids", "1,350,354", "--device", "cpu", "-o", out.to_str().unwrap()];
        ok(ran(command(&fake, &home, &args)));
        fs::read(out).unwrap()
    };
    assert_eq!(logits(NAME), logits(source.to_str().unwrap()));
    let seen = fake.seen();
    assert!(!seen.iter().any(|seen| seen.path.contains("pytorch_model") || seen.path.contains("README")));
    assert_eq!(ok(ran(command(&fake, &home, &["list"]))).lines().count(), 2);
}

#[test]
fn a_cache_without_links_stores_nothing_twice() {
    let home = folder("no-links");
    let bytes = noise(3000);
    let fake = FakeHub::new(&[("a/m-Q8_0.gguf", &bytes)]);
    let hub = hub(&fake, &home).links(false);
    let local = pull(&hub, &fake, NAME).unwrap();
    assert!(fs::symlink_metadata(&local.path).unwrap().is_file());
    assert_eq!(fs::read(&local.path).unwrap(), bytes);
    assert!(!blob(&home, &bytes).exists());
    fake.sent();
    assert_eq!(pull(&hub, &fake, NAME).unwrap(), local);
    assert_eq!(fake.sent(), 0);
    assert_eq!(hub.list().unwrap()[0].bytes, 3000);
    assert_eq!(hub.remove(&reference(NAME, &fake)).unwrap(), 3000 + COMMIT.len() as u64);
}

#[test]
fn addresses_are_downloaded_and_kept() {
    let home = folder("address");
    let bytes = model();
    let fake =
        FakeHub::new(&[(GGUF, &bytes), ("m-00001-of-00002.gguf", &noise(500)), ("m-00002-of-00002.gguf", &noise(600))]);
    // Another host than the hub's: there is no list, and no hash.
    let elsewhere = FakeHub::new(&[]);
    let hub = hub(&elsewhere, &home);
    let address = format!("{}/{GGUF}", fake.address);
    assert!(matches!(reference(&address, &elsewhere), Reference::Url(_)));
    fake.fault(Fault::Cut(0)); // what asks for the length
    fake.fault(Fault::Cut(100_000));
    let local = pull(&hub, &elsewhere, &address).unwrap();
    assert_eq!((fs::read(&local.path).unwrap() == bytes, local.name.as_str()), (true, address.as_str()));
    assert!(fake.seen().iter().any(|seen| seen.headers.contains_key("if-range")), "only if it is the same file still");
    fake.sent();
    let args = ["-n", "4", "--temp", "0", "--device", "cpu"];
    let said = ok(ran(command(&elsewhere, &home, &[&["run", &address, "The dog"], &args[..]].concat())));
    assert!(said.starts_with(" lived"), "{said}");
    assert_eq!(fake.sent(), 0);
    assert!(ok(ran(command(&elsewhere, &home, &["list"]))).contains(&address));
    ok(ran(command(&elsewhere, &home, &["rm", "--yes", &address])));
    assert!(ok(ran(command(&elsewhere, &home, &["list"]))).is_empty());
    // A split one comes whole.
    let part = format!("{}/m-00002-of-00002.gguf", fake.address);
    let local = pull(&hub, &elsewhere, &part).unwrap();
    assert!(
        local.path.ends_with("m-00002-of-00002.gguf") && local.path.with_file_name("m-00001-of-00002.gguf").exists()
    );
    let error = pull(&hub, &elsewhere, &format!("{}/missing.gguf", fake.address)).unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
}

#[test]
fn a_proxy_of_the_environment_is_used() {
    let home = folder("proxy");
    let fake = FakeHub::new(&[("m-Q8_0.gguf", &noise(100))]);
    let mut command = command(&fake, &home, &["pull", NAME]);
    command.env("HF_ENDPOINT", "http://hub.invalid").env("ALL_PROXY", &fake.address);
    assert!(ok(ran(command)).contains("m-Q8_0.gguf"));
    assert!(fake.seen().iter().any(|seen| seen.method == "CONNECT" && seen.path.starts_with("hub.invalid")));
}

#[test]
fn small_files_are_checked_by_git_s_hash() {
    assert_eq!(git_hash(b"hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
    let fake = FakeHub::new(&[("config.json", b"{}"), ("model.safetensors", &noise(64))]);
    fake.fault(Fault::Flip(0));
    let error = pull(&hub(&fake, &folder("git")), &fake, NAME).unwrap_err();
    assert!(error.to_string().starts_with("config.json: its hash is"), "{error}");
}

/// Hugging Face's own library, where scripts/test has installed it.
fn python(script: &str, home: &Path, fake: &FakeHub) -> Option<String> {
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/huggingface_hub");
    if !library.exists() {
        assert!(std::env::var_os("CI").is_none(), "{} is not there: scripts/test installs it", library.display());
        return None;
    }
    let mut command = Command::new("python3");
    command.args(["-c", script]).env("PYTHONPATH", library).env("HOME", home).env("HF_ENDPOINT", &fake.address);
    command
        .env("HF_HUB_DISABLE_TELEMETRY", "1")
        .env("HF_HUB_DISABLE_XET", "1")
        .env("NO_PROXY", "127.0.0.1")
        .stdin(Stdio::null());
    Some(ok(ran(command)))
}

#[test]
fn python_and_we_share_a_cache() {
    let bytes = model();
    let fake = FakeHub::new(&[("sub/stories-Q8_0.gguf", &bytes)]);
    // Ours, seen from there.
    let home = folder("python-reads");
    pull(&hub(&fake, &home), &fake, NAME).unwrap();
    let scan = "from huggingface_hub import scan_cache_dir\n\
        info = scan_cache_dir()\n\
        assert not info.warnings, info.warnings\n\
        for repo in info.repos:\n \
          for rev in repo.revisions:\n  \
            for file in rev.files: print(repo.repo_id, repo.repo_type, rev.commit_hash, sorted(rev.refs), file.file_name, file.size_on_disk)\n";
    if let Some(listed) = python(scan, &home, &fake) {
        assert_eq!(listed, format!("org/repo model {COMMIT} ['main'] stories-Q8_0.gguf {}\n", bytes.len()));
    }
    // Theirs, seen from here.
    let home = folder("python-writes");
    let fetch =
        "from huggingface_hub import hf_hub_download\nprint(hf_hub_download('org/repo', 'sub/stories-Q8_0.gguf'))\n";
    if let Some(path) = python(fetch, &home, &fake) {
        let local = hub(&fake, &home).find(&reference("org/repo:Q8_0", &fake)).unwrap().expect("it is there");
        assert_eq!(local.path.to_str().unwrap(), path.trim());
        fake.sent();
        let said =
            ok(ran(command(&fake, &home, &["run", NAME, "The dog", "-n", "4", "--device", "cpu", "--temp", "0"])));
        assert!(said.starts_with(" lived") && fake.sent() == 0, "{said}");
        let before: u64 = fs::metadata(local.path).unwrap().len();
        ok(ran(command(&fake, &home, &["pull", NAME])));
        assert_eq!((fake.sent(), hub(&fake, &home).list().unwrap()[0].bytes), (0, before), "nothing is stored twice");
    }
}
