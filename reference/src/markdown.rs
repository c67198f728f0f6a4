//! Markdown from texts of the source, which are plain except for code in backticks.

/// Words that are the value of a flag, if they follow one.
const VALUES: [&str; 3] = ["tikv", "lease", "extensive"];

/// Returns a text with its flags, paths, variables and placeholders as code.
pub(crate) fn prose(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let marked = parts.map(|(at, part)| if at % 2 == 0 { mark(part) } else { part.to_owned() });
    marked.collect::<Vec<_>>().join("`")
}

/// Returns a text as code.
pub(crate) fn code(text: &str) -> String {
    format!("`{text}`")
}

/// Returns texts as code, separated by commas.
pub(crate) fn codes<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> String {
    let codes = texts.into_iter().map(|text| code(text.as_ref()));
    codes.collect::<Vec<_>>().join(", ")
}

/// Returns a table. Cells are Markdown.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let line = |cells: [String; N]| format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "));
    let mut table = line(head.map(str::to_owned));
    table.push_str(&format!("|{}\n", "---|".repeat(N)));
    table.extend(rows.into_iter().map(line));
    table
}

/// Ends a text with a full stop.
pub(crate) fn sentence(text: &str) -> String {
    let text = text.trim_end();
    let end = if text.ends_with(['.', ':', '!']) { "" } else { "." };
    format!("{text}{end}")
}

/// Breaks a paragraph into lines.
pub(crate) fn wrap(text: &str) -> String {
    const WIDTH: usize = 145;
    let (mut lines, mut width) = (String::new(), 0);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        let separator = match width {
            0 => "",
            width if width + 1 + length > WIDTH => "\n",
            _ => " ",
        };
        width = if separator == " " { width + 1 + length } else { length };
        lines.extend([separator, word]);
    }
    lines
}

fn mark(text: &str) -> String {
    let mut words = text.split(' ').peekable();
    let mut marked = Vec::new();
    while let Some(word) = words.next() {
        let mut word = word.to_owned();
        // Code of several words: a placeholder, and a flag with its value.
        while has_open_placeholder(&word) {
            let Some(next) = words.next() else { break };
            word = format!("{word} {next}");
        }
        if word.starts_with("--")
            && let Some(value) = words.next_if(|next| VALUES.contains(&bare(next)))
        {
            word = format!("{word} {value}");
        }
        let code_in_word = Some(bare(&word)).filter(|bare| is_code(bare));
        marked.push(match code_in_word {
            Some(bare) => word.replacen(bare, &code(bare), 1),
            None => word,
        });
    }
    marked.join(" ")
}

fn has_open_placeholder(word: &str) -> bool {
    let begun = word.rsplit_once('<').map(|(_, name)| name);
    begun.is_some_and(|name| !name.is_empty() && !name.contains('>'))
}

/// Returns a word without the punctuation around it.
fn bare(word: &str) -> &str {
    let word = word.trim_start_matches(['(', '"']);
    word.trim_end_matches(['.', ',', ';', ':', ')', '"'])
}

fn is_code(word: &str) -> bool {
    let begins = |starts: &[&str]| {
        starts
            .iter()
            .any(|start| word.starts_with(start) && word.len() > start.len())
    };
    let is_path = word.contains('/') && !word.starts_with(|first: char| first.is_ascii_uppercase());
    begins(&["--", "$", "\\"]) || is_path || word != "<" && word.contains(['<', '_', '=', '*', '{', '|'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_a_text_are_code() {
        for (text, marked) in [
            ("set --name, or --tls.", "set `--name`, or `--tls`."),
            ("--storage tikv, --metrics shows", "`--storage tikv`, `--metrics` shows"),
            ("(a <name>=<peer URL> pair)", "(a `<name>=<peer URL>` pair)"),
            ("the file <data-dir>/a: x", "the file `<data-dir>/a`: x"),
            ("as `a --b` says, in /v3/", "as `a --b` says, in `/v3/`"),
            ("HTTP/2 - TLS, 0: off", "HTTP/2 - TLS, 0: off"),
            ("\"too many\" and too_many", "\"too many\" and `too_many`"),
            ("a < b", "a < b"),
        ] {
            assert_eq!(prose(text), marked);
        }
    }

    #[test]
    fn paragraphs_are_wrapped() {
        let long = "a word ".repeat(100);
        let wrapped = wrap(&long);
        let widths: Vec<_> = wrapped.lines().map(str::len).collect();
        assert_eq!(widths, [141, 144, 141, 144, 125]);
        assert_eq!(wrapped.replace('\n', " "), long.trim());
    }

    #[test]
    fn tables_keep_their_columns() {
        let rows = [[code("a|b"), sentence("x")]];
        assert_eq!(table(["a", "b"], rows), "| a | b |\n|---|---|\n| `a\\|b` | x. |\n");
    }
}
