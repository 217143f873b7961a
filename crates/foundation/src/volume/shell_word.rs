//! Words of the shell commands that fanfs suggests.

/// `text` quoted as one word of a shell command, on one line.
pub fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:=,@%+".contains(c);
    if text.chars().all(plain) && !text.is_empty() {
        return text.to_owned();
    }
    if !text.contains(char::is_control) {
        return format!("'{}'", text.replace('\'', "'\\''"));
    }
    let mut word = String::from("$'");
    for c in text.chars() {
        match c {
            '\\' | '\'' => word.extend(['\\', c]),
            c if c.is_control() => {
                let bytes = c.to_string().into_bytes();
                word.extend(bytes.iter().map(|byte| format!("\\x{byte:02x}")));
            }
            c => word.push(c),
        }
    }
    word + "'"
}
