//! Templates: Markdown in which a derived part replaces each line such as `{{spec}}`.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};

const HEADER: &str = "<!-- Rendered by `make reference` from the source and reference/templates; do not edit. -->\n\n";

/// Returns the page that a template and its parts make. Fails unless the template has exactly these parts.
pub(crate) fn fill<const N: usize>(template: &str, parts: [(&str, String); N]) -> anyhow::Result<String> {
    let mut parts = BTreeMap::from(parts);
    let mut page = HEADER.to_owned();
    for line in template.lines() {
        match line.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}")) {
            Some(name) => {
                let part = parts.remove(name).with_context(|| format!("there is no part {name}"))?;
                page.push_str(part.trim_end());
            }
            None => page.push_str(line),
        }
        page.push('\n');
    }
    ensure!(parts.is_empty(), "not in the template: {:?}", parts.keys());
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_filled_in_once() {
        let fill = |template, parts| fill::<1>(template, [parts]);
        let part = || ("a", "x\ny\n".to_owned());
        assert_eq!(
            fill("# T\n\n{{a}}\n\nend", part()).unwrap(),
            format!("{HEADER}# T\n\nx\ny\n\nend\n")
        );
        let missing = fill("# T", part()).unwrap_err().to_string();
        assert_eq!(missing, "not in the template: [\"a\"]");
        let unknown = fill("{{a}}\n{{b}}", part()).unwrap_err().to_string();
        assert_eq!(unknown, "there is no part b");
    }
}
