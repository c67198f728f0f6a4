//! Columns of text, as kubectl prints them.

/// Space between two columns.
const COLUMN_GAP: usize = 3;

/// Returns lines with these columns; the last one is not padded. Control characters in texts of other users are replaced by spaces.
pub(super) fn table<const N: usize>(header: [&str; N], rows: &[[String; N]]) -> String {
    let header = header.map(str::to_owned);
    let lines: Vec<[String; N]> = std::iter::once(&header)
        .chain(rows)
        .map(|row| row.each_ref().map(|cell| cell_of(cell)))
        .collect();
    let mut text = String::new();
    for line in &lines {
        let mut written = String::new();
        for (column, cell) in line.iter().enumerate() {
            written.push_str(cell);
            let widest = lines.iter().map(|line| line[column].chars().count()).max();
            let padding = widest.unwrap_or_default() + COLUMN_GAP - cell.chars().count();
            written.extend(std::iter::repeat_n(' ', padding));
        }
        text.push_str(written.trim_end());
        text.push('\n');
    }
    text
}

/// Returns a text in one line without control characters, and `-` for an empty one.
pub(super) fn cell_of(text: &str) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if clean.is_empty() { "-".to_owned() } else { clean }
}

/// Formats seconds in the largest unit that they fill, as kubectl does.
pub(super) fn age(seconds: i64) -> String {
    match seconds {
        ..=0 => "ended".to_owned(),
        1..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}
