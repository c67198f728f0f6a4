//! A brain's reports about itself, parsed and bounded. A brain is untrusted, because the tenant chooses its image.

mod answer;
mod refusal;
#[cfg(test)]
mod tests;

pub use answer::{Answer, CertificateInUse, Formats, KnownLeader, Role, Storage, Tls};
pub use refusal::Refusal;

/// Maximum length of a brain's text in a message, in bytes.
pub const TEXT: usize = 256;

/// Makes a brain's text fit for a message: at most `longest` bytes, no control characters.
pub fn clean(text: &str, longest: usize) -> String {
    let mut cleaned = String::new();
    for c in text.chars().filter(|c| !c.is_control()) {
        if cleaned.len() + c.len_utf8() > longest {
            break;
        }
        cleaned.push(c);
    }
    cleaned
}
