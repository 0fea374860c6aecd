//! Conversations and settings on disk: a file each, replaced whole, so that a crash leaves the old one or the new one.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use wgslm::chat::Message;

use crate::settings::Settings;

/// What the files of this program begin with; those of a later one are left alone.
const VERSION: u32 = 1;
/// Characters of a title.
const TITLE: usize = 40;

/// A conversation, by the name of its file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Conversation {
    pub(crate) id: String,
    /// The model that answered last.
    pub(crate) model: String,
    pub(crate) messages: Vec<Message>,
}

impl Conversation {
    /// The beginning of its first message.
    pub(crate) fn title(&self) -> String {
        let first = self.messages.iter().find(|message| message.role == "user");
        let words = first.map(|message| message.content.split_whitespace().collect::<Vec<_>>().join(" "));
        match words.filter(|words| !words.is_empty()) {
            Some(words) if words.chars().count() > TITLE => words.chars().take(TITLE - 1).chain(['…']).collect(),
            Some(words) => words,
            None => "New conversation".to_owned(),
        }
    }

    /// Whether an answer to its last question could be asked for again.
    pub(crate) fn can_regenerate(&self) -> bool {
        self.messages.iter().any(|message| message.role == "user")
    }

    /// Goes back to its last question.
    pub(crate) fn unanswer(&mut self) {
        while self.messages.pop_if(|message| message.role != "user").is_some() {}
    }
}

/// A conversation's file.
#[derive(Serialize, Deserialize)]
struct Content {
    version: u32,
    #[serde(default)]
    model: String,
    messages: Vec<Message>,
}

/// The folder with all of it.
pub(crate) struct Store {
    folder: PathBuf,
}

impl Store {
    /// Where this system keeps what programs know of a person; `var` gives environment variables.
    pub(crate) fn usual_folder(var: impl Fn(&str) -> Option<std::ffi::OsString>) -> Option<PathBuf> {
        let path = |name: &str| var(name).map(PathBuf::from).filter(|path| path.is_absolute());
        if let Some(own) = path("WGSLM_DESKTOP_DATA") {
            return Some(own);
        }
        let base = if cfg!(windows) {
            path("APPDATA")?
        } else if cfg!(target_os = "macos") {
            path("HOME")?.join("Library/Application Support")
        } else {
            path("XDG_DATA_HOME").or_else(|| Some(path("HOME")?.join(".local/share")))?
        };
        Some(base.join("wgslm-desktop"))
    }

    /// Opens a folder, made where it is missing.
    pub(crate) fn open(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.json"))
    }

    /// All conversations, the newest first, and what could not be read: those files stay as they are.
    pub(crate) fn load(&self) -> (Vec<Conversation>, Vec<String>) {
        let (mut conversations, mut problems) = (Vec::new(), Vec::new());
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) => return (conversations, vec![format!("{}: {error}", self.folder.display())]),
        };
        for path in entries.flatten().map(|entry| entry.path()) {
            let id = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json")).map(str::to_owned);
            let Some(id) = id.filter(|id| is_id(id)) else { continue };
            match read(&path) {
                Ok(Content { model, messages, .. }) => conversations.push(Conversation { id, model, messages }),
                Err(problem) => problems.push(format!("{}: {problem}", path.display())),
            }
        }
        conversations.sort_by(|a, b| b.id.cmp(&a.id));
        problems.sort();
        (conversations, problems)
    }

    /// An empty conversation, which becomes a file when it is saved. No file has its name yet, readable or not.
    pub(crate) fn create(&self, others: &[Conversation]) -> Conversation {
        let mut number = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_millis());
        loop {
            let id = format!("{number:015}");
            if !self.path(&id).exists() && others.iter().all(|other| other.id != id) {
                return Conversation { id, model: String::new(), messages: Vec::new() };
            }
            number += 1;
        }
    }

    pub(crate) fn save(&self, conversation: &Conversation) -> io::Result<()> {
        let Conversation { id, model, messages } = conversation;
        let content = Content { version: VERSION, model: model.clone(), messages: messages.clone() };
        self.replace(&self.path(id), &content)
    }

    pub(crate) fn delete(&self, conversation: &Conversation) -> io::Result<()> {
        match fs::remove_file(self.path(&conversation.id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn settings_path(&self) -> PathBuf {
        self.folder.join("settings.json")
    }

    /// The settings; none if there are none yet.
    pub(crate) fn settings(&self) -> Result<Option<Settings>, String> {
        let path = self.settings_path();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        match serde_json::from_slice::<Settings>(&text) {
            Ok(settings) => Ok(Some(settings.clamped())),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    pub(crate) fn save_settings(&self, settings: &Settings) -> io::Result<()> {
        self.replace(&self.settings_path(), settings)
    }

    /// Writes a file beside the old one, and then puts it in its place.
    fn replace(&self, path: &Path, content: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(content)?;
        let new = path.with_extension("json.new");
        let mut file = fs::File::create(&new)?;
        file.write_all(&text)?;
        file.sync_all()?;
        drop(file);
        fs::rename(&new, path)
    }
}

fn is_id(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn read(path: &Path) -> Result<Content, String> {
    let text = fs::read(path).map_err(|error| error.to_string())?;
    let content: Content = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    if content.version > VERSION {
        return Err(format!("it is of a later version of this program, {}", content.version));
    }
    match content.messages.iter().find(|message| !matches!(&*message.role, "user" | "assistant")) {
        Some(message) => Err(format!("a message is by {:?}; user and assistant work", message.role)),
        None => Ok(content),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of a test's own, removed at its end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> (Self, Store) {
            let path = std::env::temp_dir().join(format!("wgslm-desktop-{name}-{}", std::process::id()));
            _ = fs::remove_dir_all(&path);
            (Self(path.clone()), Store::open(path).unwrap())
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            _ = fs::remove_dir_all(&self.0);
        }
    }

    fn message(role: &str, content: &str) -> Message {
        Message { role: role.into(), content: content.into() }
    }

    #[test]
    fn what_is_saved_is_found_newest_first() {
        let (folder, store) = Folder::new("saved");
        let mut kept: Vec<Conversation> = Vec::new();
        for text in ["Hello", "Ünïcode \u{1f600}\n\"quoted\"", ""] {
            let mut conversation = store.create(&kept);
            conversation.messages = vec![message("user", text), message("assistant", "yes")];
            store.save(&conversation).unwrap();
            kept.insert(0, conversation);
        }
        assert_eq!(store.load(), (kept.clone(), Vec::new()));
        // Saved again: replaced, with nothing left over.
        kept[0].unanswer();
        store.save(&kept[0]).unwrap();
        store.delete(&kept[1]).unwrap();
        store.delete(&kept.remove(1)).unwrap();
        assert_eq!(store.load().0, kept);
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 2);
    }

    #[test]
    fn an_unreadable_file_is_reported_and_kept() {
        let (folder, store) = Folder::new("unreadable");
        let wrong = ["", "{", "[]", r#"{"version": 2, "messages": []}"#, "\0\u{1}"];
        let role = r#"{"version": 1, "messages": [{"role": "system", "content": "x"}]}"#;
        let wrong: Vec<_> = wrong.into_iter().chain([role]).enumerate().collect();
        for (n, text) in &wrong {
            fs::write(folder.0.join(format!("{n}.json")), text).unwrap();
        }
        fs::write(folder.0.join("notes.json"), "not ours").unwrap();
        // One that a crash left half written.
        fs::write(folder.0.join("17.json.new"), "{").unwrap();
        let conversation = store.create(&[]);
        store.save(&conversation).unwrap();
        let (found, problems) = store.load();
        assert_eq!((found.len(), problems.len()), (1, wrong.len()), "{problems:?}");
        for (n, text) in &wrong {
            assert_eq!(fs::read_to_string(folder.0.join(format!("{n}.json"))).unwrap(), *text);
        }
        // Nor does a new one take the name of any.
        assert!(store.create(&found).id > conversation.id);
    }

    #[test]
    fn settings_are_kept_or_reported() {
        let (_folder, store) = Folder::new("settings");
        assert_eq!(store.settings(), Ok(None));
        let settings = Settings { system: "Be brief.".into(), max_tokens: 7, ..Settings::default() };
        store.save_settings(&settings).unwrap();
        assert_eq!(store.settings(), Ok(Some(settings)));
        fs::write(store.settings_path(), "nonsense").unwrap();
        assert!(store.settings().unwrap_err().contains("settings.json"));
        // They are no conversation.
        assert_eq!(store.load(), (Vec::new(), Vec::new()));
    }

    #[test]
    fn titles_are_short() {
        let titled = |text: &str| {
            Conversation { id: "1".into(), model: String::new(), messages: vec![message("user", text)] }.title()
        };
        assert_eq!(titled(" Two\nlines "), "Two lines");
        assert_eq!(titled(" \n"), "New conversation");
        let long = titled(&"é".repeat(100));
        assert_eq!((long.chars().count(), long.chars().last()), (TITLE, Some('…')));
    }

    #[test]
    fn the_folder_is_absolute_or_none() {
        let with = |name: &'static str, value: &'static str| {
            Store::usual_folder(move |asked| (asked == name).then(|| value.into()))
        };
        assert_eq!(with("NOTHING", "/x"), None);
        assert_eq!(with("WGSLM_DESKTOP_DATA", "relative"), None);
        if cfg!(target_os = "linux") {
            assert_eq!(with("WGSLM_DESKTOP_DATA", "/x"), Some("/x".into()));
            assert_eq!(with("HOME", "/home/ann"), Some("/home/ann/.local/share/wgslm-desktop".into()));
            assert_eq!(with("XDG_DATA_HOME", "/data"), Some("/data/wgslm-desktop".into()));
        }
    }
}
