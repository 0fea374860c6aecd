//! The documents against the tree: the files that they name exist, and a recipe names every file that names its example.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A recipe's heading, and the names of its example: whole words.
const RECIPES: &[(&str, &[&str])] = &[
    ("A kernel", &["expert_sort", "EXPERT_SORT"]),
    ("An op", &["row_wise", "RowWise", "ROW_WISE"]),
    ("A block format", &["q5_1", "Q5_1"]),
    ("An architecture", &["stablelm"]),
    ("A sampler step on the CPU", &["typical"]),
    ("A sampler step on the device", &["min_p", "deepest", "DEEPEST"]),
];

/// Where something that is added leaves its name. Prose that explains is no such place.
const PLACES: &[&str] =
    &["src", "wgsl", "tests", "tools", "web/src", "README.md", "COMPATIBILITY.md", "docs/cli.md", "docs/kernels.md"];

const ENDINGS: &[&str] = &["rs", "wgsl", "py", "mjs", "ts", "md"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All text files at or below a path, but for data, what is built, and this file.
fn files(path: &Path, found: &mut Vec<PathBuf>) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if path.is_dir() {
        if !["node_modules", "dist", "data", "__pycache__", "target"].contains(&&*name) {
            let entries = fs::read_dir(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            entries.for_each(|entry| files(&entry.expect("an entry").path(), found));
        }
    } else if path.extension().is_some_and(|e| ENDINGS.contains(&&*e.to_string_lossy())) && name != "documents.rs" {
        found.push(path.to_owned());
    }
}

fn names(text: &str, words: &[&str]) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| words.contains(&word))
}

/// The paths of files that stand between backticks outside of blocks of code.
fn paths(section: &str) -> BTreeSet<String> {
    let prose = section.split("```").step_by(2);
    let quoted = prose.flat_map(|text| text.split('`').skip(1).step_by(2));
    let is_path = |text: &&str| {
        let ending = text.rsplit_once('.').map(|(_, ending)| ending);
        !text.contains(' ') && ending.is_some_and(|ending| ENDINGS.contains(&ending))
    };
    // A file that is mentioned by its name alone is not a step.
    quoted.filter(is_path).filter(|text| root().join(text).exists() || text.contains('/')).map(str::to_owned).collect()
}

#[test]
fn recipes_name_every_place() {
    let document = fs::read_to_string(root().join("docs/recipes.md")).expect("docs/recipes.md");
    let mut all = Vec::new();
    PLACES.iter().for_each(|place| files(&root().join(place), &mut all));
    let texts: Vec<_> = all
        .iter()
        .map(|path| (path, fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))))
        .collect();
    assert!(texts.len() > 300, "only {} files", texts.len());
    let sections: Vec<_> = document.split("\n## ").skip(1).collect();
    assert_eq!(sections.len(), RECIPES.len(), "recipes in docs/recipes.md, and those that this test knows");
    let mut wrong = Vec::new();
    for (heading, words) in RECIPES {
        let start = format!("{heading}\n");
        let section = sections.iter().find(|s| s.starts_with(&start)).unwrap_or_else(|| panic!("no recipe {heading}"));
        let said = paths(section);
        let below = |path: &Path| path.strip_prefix(root()).expect("below").to_string_lossy().replace('\\', "/");
        let found = texts.iter().filter(|(_, text)| names(text, words)).map(|(path, _)| below(path)).collect();
        wrong.extend(said.difference(&found).map(|path| format!("{heading}: {path} does not name {words:?}")));
        wrong.extend(
            found.difference(&said).map(|path| format!("{heading}: {path} names {words:?}, and no step says so")),
        );
    }
    assert!(wrong.is_empty(), "docs/recipes.md is not what the tree says:\n{}", wrong.join("\n"));
}

/// The map stays one, and its import order is the one that `tidy.rs` checks.
#[test]
fn the_map_is_short_and_has_the_import_order() {
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    assert!(map.lines().count() <= 150, "ARCHITECTURE.md has {} lines", map.lines().count());
    let group = |group: &&[&str]| group.iter().filter(|m| **m != "main").copied().collect::<Vec<_>>().join(", ");
    let order = super::tidy::ORDER.iter().map(group).collect::<Vec<_>>().join(" → ");
    let words = map.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&format!("``` {order} ```")), "ARCHITECTURE.md has another import order than {order}");
}

/// The documents in the root and in `docs/`: (path, text).
fn documents() -> Vec<(PathBuf, String)> {
    let of = |folder: PathBuf| fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let all = of(root().to_owned()).chain(of(root().join("docs")));
    let documents = all.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    documents.map(|path| (path.clone(), fs::read_to_string(&path).expect("a document"))).collect()
}

/// Every variable that stands for an option is in the table of docs/cli.md.
#[test]
fn variables_of_options_are_documented() {
    let document = fs::read_to_string(root().join("docs/cli.md")).expect("docs/cli.md");
    let mut sources = Vec::new();
    files(&root().join("src/cli"), &mut sources);
    let sources: String = sources.iter().map(|path| fs::read_to_string(path).expect("text")).collect();
    let variables: BTreeSet<&str> =
        sources.split("env = \"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(variables.len() > 20, "{variables:?}");
    let missing: Vec<_> = variables.iter().filter(|name| !document.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The anchor that a heading has on the web.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn documents_name_files_and_headings_that_exist() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (path, text) in documents() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let folder = path.parent().expect("a folder");
        let prose: String = text.split("```").step_by(2).collect();
        for link in prose.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { folder.join(file) };
            let headings =
                |text: String| text.lines().any(|l| l.starts_with('#') && anchor(l.trim_start_matches('#')) == heading);
            if !target.exists() {
                wrong.push(format!("{name}: {link}: no such file"));
            } else if !heading.is_empty() && !fs::read_to_string(&target).is_ok_and(headings) {
                wrong.push(format!("{name}: {link}: no such heading"));
            }
            seen += 1;
        }
        // Paths between backticks, from the root or from `src`; a changelog speaks of what was.
        let quoted = prose.split('`').skip(1).step_by(2);
        let is_path = |text: &&str| {
            let known = text.rsplit_once('.').is_some_and(|(_, ending)| ["rs", "wgsl", "py", "mjs"].contains(&ending));
            known && text.contains('/') && !text.contains([' ', '*', '<', ':'])
        };
        for file in quoted.filter(is_path).filter(|_| name != "CHANGELOG.md") {
            if !["", "src", "web", "tools"].iter().any(|from| root().join(from).join(file).exists()) {
                wrong.push(format!("{name}: `{file}` is not there"));
            }
            seen += 1;
        }
    }
    assert!(seen > 100, "only {seen} links and paths were seen");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The longest line of prose.
const WIDTH: usize = 100;

/// The lines of prose that are too long, with their lengths. Not prose: code, tables, comments, and lines that hold a link
/// or a quotation alone, which cannot be broken.
fn long_lines(text: &str) -> Vec<(usize, usize)> {
    let mut code = false;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let content = line.trim_start().trim_start_matches(['-', '*', ' ']);
        if content.starts_with("```") {
            code = !code;
            continue;
        }
        let whole = content.trim_end_matches([':', '.', ',']);
        let link = !whole.contains(' ') || (whole.starts_with('[') && whole.ends_with(')') && !whole.contains("). "));
        let quoted = whole.starts_with('`') && whole.ends_with('`') && whole.matches('`').count() == 2;
        let other = content.starts_with('|') || content.starts_with("<!--") || link || quoted;
        let length = line.chars().count();
        if !code && !other && length > WIDTH {
            found.push((number, length));
        }
    }
    found
}

/// All Markdown of the repository, hidden folders included, but for what is built or installed.
fn markdown(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !["node_modules", "dist", "pkg", "target", ".git"].contains(&&*name) {
            markdown(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

#[test]
fn prose_has_short_lines() {
    let mut all = Vec::new();
    markdown(root(), &mut all);
    // Made of the headers of kernels, line by line.
    all.retain(|path| !path.ends_with("docs/kernels.md"));
    assert!(all.len() >= 15, "only {} documents", all.len());
    let mut wrong = Vec::new();
    for path in all {
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let name = path.strip_prefix(root()).expect("below").display().to_string();
        wrong.extend(long_lines(&text).iter().map(|(line, length)| format!("{name}:{line}: {length} characters")));
    }
    assert!(wrong.is_empty(), "lines of more than {WIDTH} characters:\n{}", wrong.join("\n"));
}

#[test]
fn long_lines_of_prose_are_found() {
    let long = "word ".repeat(21) + "end.";
    let cell = format!("| {long} |");
    let quotation = format!("`{long}`:");
    let link = format!("- [{long}](docs/gpu.md)");
    let text = format!("short\n{long}\n- {long}\n```sh\n{long}\n```\n{cell}\n{quotation}\n{link}\n{long}");
    assert_eq!(long_lines(&text), [(2, 109), (3, 111), (10, 109)]);
    assert_eq!(long_lines(&"é".repeat(120)), []); // one word
    assert_eq!(long_lines(&["é"; 50].join(" ")), []); // 99 characters in 149 bytes
}
