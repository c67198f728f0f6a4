//! Checks the dependencies between the modules of this crate against the order in ARCHITECTURE.md.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the modules in the order of ARCHITECTURE.md: each may use those after it.
fn order() -> Vec<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../ARCHITECTURE.md")).unwrap();
    let (_, rest) = text.split_once("```text\nserver > ").expect("the block of rooms");
    let (block, _) = rest.split_once("```").unwrap();
    let rooms = block.split('>').map(|room| room.trim().to_owned());
    std::iter::once("server".to_owned()).chain(rooms).collect()
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let is_test = path.file_stem().is_some_and(|name| name == "tests");
        if path.is_dir() && !is_test {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") && !is_test {
            found.push(path);
        }
    }
}

#[test]
fn arrows_between_rooms_point_one_way() {
    let (src, order, mut files) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), order(), Vec::new());
    sources(&src, &mut files);
    let place = |room: &str| order.iter().position(|listed| listed == room);
    let mut wrong = Vec::new();
    for file in files {
        let name = file.strip_prefix(&src).unwrap().to_str().unwrap();
        let room = name.split('/').next().unwrap().trim_end_matches(".rs");
        if ["lib", "main", "rooms", "fuzzing", "small_disk"].contains(&room) {
            continue;
        }
        let from = place(room).unwrap_or_else(|| panic!("{room} is not listed in ARCHITECTURE.md"));
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
            for used in line.split("crate::").skip(1) {
                let used = used.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
                if place(used).is_some_and(|to| to < from) {
                    wrong.push(format!("{name}: {}", line.trim()));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "against the order of rooms in ARCHITECTURE.md:\n{}",
        wrong.join("\n")
    );
}
