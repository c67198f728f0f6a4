//! Sizes as Kubernetes writes them.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The result of `parse` for the quantity 1.
pub const ONE: i128 = 1000;

/// Returns the value of a quantity in JSON, which may be a number; `None` as for `parse`.
pub fn of(value: &serde_json::Value) -> Option<i128> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    parse(&Quantity(text))
}

/// Returns the value in thousandths; `None` if it is not a quantity or out of range.
pub fn parse(quantity: &Quantity) -> Option<i128> {
    let text = quantity.0.as_str();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (number, suffix) = text.split_at(digits);
    let scale: i128 = match suffix {
        "m" => 1,
        "" => 1000,
        "k" => 1000 * 1000,
        "M" => 1000 * 1000_i128.pow(2),
        "G" => 1000 * 1000_i128.pow(3),
        "T" => 1000 * 1000_i128.pow(4),
        "P" => 1000 * 1000_i128.pow(5),
        "E" => 1000 * 1000_i128.pow(6),
        "Ki" => 1000 << 10,
        "Mi" => 1000 << 20,
        "Gi" => 1000 << 30,
        "Ti" => 1000 << 40,
        "Pi" => 1000 << 50,
        "Ei" => 1000 << 60,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.len() > 12 || whole.len() > 15 {
        return None;
    }
    let unit = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let read = |digits: &str| {
        if digits.is_empty() {
            Some(0)
        } else {
            digits.parse::<i128>().ok()
        }
    };
    let value = read(whole)?
        .checked_mul(unit)?
        .checked_add(read(fraction)?)?
        .checked_mul(scale)?;
    // Round up to a thousandth, as Kubernetes does.
    Some(value.checked_add(unit - 1)? / unit)
}

/// Returns a size in bytes, rounded up to whole MiB, as a quantity.
pub fn of_bytes(bytes: u64) -> Quantity {
    let mebibytes = bytes.div_ceil(1 << 20);
    Quantity(match mebibytes % 1024 {
        0 => format!("{}Gi", mebibytes / 1024),
        _ => format!("{mebibytes}Mi"),
    })
}

/// Returns a size in whole bytes; `None` as for `parse`, or if it does not fit.
pub fn bytes(quantity: &Quantity) -> Option<u64> {
    u64::try_from(parse(quantity)? / ONE).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Option<i128> {
        parse(&Quantity(text.to_owned()))
    }

    #[test]
    fn equal_values_are_equal_however_they_are_written() {
        assert_eq!(value("1"), Some(1000));
        assert_eq!(value("1000m"), value("1"));
        assert_eq!(value("1.5Gi"), value("1536Mi"));
        assert_eq!(value("1Ki"), value("1024"));
        assert_eq!(value("1M"), value("1000k"));
        assert_eq!(value("0.0005"), Some(1));
        assert!(value("10Gi") > value("10G"));
    }

    #[test]
    fn bytes_are_rounded_up_to_mebibytes() {
        let written = [0, 1, 1 << 20, (1 << 30) + 1, 10 << 30].map(|bytes| of_bytes(bytes).0);
        assert_eq!(written, ["0Gi", "1Mi", "1Mi", "1025Mi", "10Gi"]);
        assert_eq!(bytes(&Quantity("1.5Ki".to_owned())), Some(1536));
    }

    #[test]
    fn malformed_quantity_has_no_value() {
        for text in ["", "Gi", "-1", "1GiB", "1 Gi", ".", "1.2.3", "9999999999999999"] {
            assert_eq!(value(text), None, "{text:?}");
        }
    }
}
