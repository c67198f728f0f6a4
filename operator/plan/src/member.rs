//! A brain's reports about itself, parsed and bounded. A brain is untrusted, because the tenant chooses its image.

mod answer;
mod refusal;
#[cfg(test)]
mod tests;

pub use answer::{
    BrainRole, CertificateInUse, DiskSpace, KnownLeader, LoadedCertificates, MemberAnswer, MemberSpace, MemberStorage,
    StoredFormats,
};
pub use refusal::BrainRefusal;

/// Maximum length of a brain's text in a message, in bytes.
pub const MAX_TEXT_BYTES: usize = 256;

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
