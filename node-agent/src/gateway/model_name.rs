//! Which model a request is for: the `model` field of a JSON body, or of a multipart form (audio). Nothing else is looked at.

use std::borrow::Cow;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;

use super::errors::ApiError;

/// No model's name is longer; keeps error texts short.
const LONGEST: usize = 256;

/// The value of `model`.
pub fn find<'a>(headers: &HeaderMap, body: &'a [u8]) -> Result<Cow<'a, str>, ApiError> {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let name = match content_type {
        Some(kind) if starts_with(kind, "multipart/form-data") => {
            let boundary = boundary(kind).ok_or_else(|| {
                bad("the Content-Type names no boundary; let your HTTP client set it for a multipart form")
            })?;
            in_form(body, &boundary)?
        }
        // What isn't said to be something else is taken for JSON, as vLLM's own server does.
        _ => in_json(body)?,
    };
    match name {
        Some(name) if name.len() > LONGEST => Err(bad(format!(
            "the model's name has {} characters; the longest there is has {LONGEST}",
            name.len()
        ))),
        Some(name) if !name.is_empty() => Ok(name),
        _ => Err(bad("the request names no model; say which in \"model\"")),
    }
}

fn bad(message: impl Into<String>) -> ApiError {
    ApiError::invalid(StatusCode::BAD_REQUEST, "invalid_model", message).about("model")
}

#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow, default)]
    model: Option<Cow<'a, str>>,
}

/// Reads past everything but `model`, keeping nothing of it. A second `model` is refused: whoever reads the last one would
/// serve another model than we meant.
fn in_json(body: &[u8]) -> Result<Option<Cow<'_, str>>, ApiError> {
    let named: Named<'_> = serde_json::from_slice(body).map_err(|e| {
        let text = format!("the request's body is no JSON object with a \"model\": {e}");
        ApiError::invalid(StatusCode::BAD_REQUEST, "invalid_json", text)
    })?;
    Ok(named.model)
}

fn starts_with(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// The `boundary` of a `multipart/form-data` content type, with the two dashes that go before it.
fn boundary(content_type: &str) -> Option<Vec<u8>> {
    let value = parameter(content_type, "boundary")?;
    (!value.is_empty() && value.len() <= 70).then(|| [b"--", value.as_bytes()].concat())
}

/// `value` of `kind; name=value; other="value"`.
fn parameter<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    header.split(';').skip(1).find_map(|part| {
        let (key, value) = part.trim().split_once('=')?;
        let value = value.trim();
        let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        key.trim()
            .eq_ignore_ascii_case(name)
            .then_some(quoted.unwrap_or(value))
    })
}

/// Walks over the parts of a form: `--B CRLF headers CRLF CRLF content CRLF --B … --B--`.
fn in_form<'a>(body: &'a [u8], boundary: &[u8]) -> Result<Option<Cow<'a, str>>, ApiError> {
    let ill = || bad("the multipart form in the request's body is not well-formed");
    let mut found = None;
    let next = [b"\r\n", boundary].concat();
    let mut rest = match body.strip_prefix(boundary) {
        Some(rest) => rest,
        None => &body[position(body, &next).ok_or_else(ill)? + next.len()..],
    };
    while !rest.starts_with(b"--") {
        // A boundary may be followed by blanks before its line ends.
        let start = position(rest, b"\r\n").ok_or_else(ill)?;
        let (head, content) = match rest[start..].strip_prefix(b"\r\n\r\n") {
            Some(content) => (&rest[..0], content),
            None => {
                let end = position(&rest[start + 2..], b"\r\n\r\n").ok_or_else(ill)? + start + 2;
                (&rest[start + 2..end], &rest[end + 4..])
            }
        };
        let end = position(content, &next).ok_or_else(ill)?;
        if is_field(head, "model") {
            let name = std::str::from_utf8(&content[..end]).map_err(|_| ill())?;
            if found.replace(Cow::Borrowed(name.trim())).is_some() {
                return Err(bad("the form names \"model\" twice"));
            }
        }
        rest = &content[end + next.len()..];
    }
    Ok(found)
}

fn is_field(head: &[u8], name: &str) -> bool {
    let head = String::from_utf8_lossy(head);
    head.lines().any(|line| {
        starts_with(line, "content-disposition:")
            && parameter(line, "name") == Some(name)
            && parameter(line, "filename").is_none()
    })
}

fn position(hay: &[u8], needle: &[u8]) -> Option<usize> {
    let first = *needle.first()?;
    let mut from = 0;
    loop {
        let at = from + hay[from..].iter().position(|byte| *byte == first)?;
        if hay[at..].starts_with(needle) {
            return Some(at);
        }
        from = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(body: &str) -> Result<String, ApiError> {
        find(&HeaderMap::new(), body.as_bytes()).map(Cow::into_owned)
    }

    fn form(content_type: &str, body: &[u8]) -> Result<String, ApiError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, content_type.parse().unwrap());
        find(&headers, body).map(Cow::into_owned)
    }

    #[test]
    fn the_name_is_found_wherever_it_stands() {
        assert_eq!(json(r#"{"model":"a/b","messages":[]}"#).unwrap(), "a/b");
        assert_eq!(
            json(r#"{"messages":[{"model":"no"}], "x":1e5, "model" : "t\u00e4"}"#).unwrap(),
            "tä"
        );
    }

    #[test]
    fn what_names_no_model_is_told_so() {
        for body in ["{}", r#"{"model":null}"#, r#"{"model":""}"#] {
            assert_eq!(json(body).unwrap_err().code, "invalid_model", "{body}");
        }
        for body in [
            "",
            "[]",
            "null",
            r#"{"model":1}"#,
            r#"{"model":"a","#,
            r#"{"model":"a","model":"b"}"#,
            "\u{0}",
        ] {
            let error = json(body).unwrap_err();
            assert_eq!(error.status, StatusCode::BAD_REQUEST, "{body}");
            assert!(!error.message.contains('\n'), "{}", error.message);
        }
        let long = format!(r#"{{"model":"{}"}}"#, "x".repeat(300));
        assert!(json(&long).unwrap_err().message.len() < 200);
    }

    #[test]
    fn a_deeply_nested_body_does_not_overflow() {
        let deep = format!(
            r#"{{"x":{}{},"model":"a"}}"#,
            "[".repeat(200_000),
            "]".repeat(200_000)
        );
        assert_eq!(json(&deep).unwrap(), "a");
    }

    #[test]
    fn a_form_field_is_found_behind_a_file() {
        let body = b"--XY\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n\
            RIFF\r\n--X\0\r\n\r\n--XY\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n--XY--\r\n";
        assert_eq!(form("multipart/form-data; boundary=XY", body).unwrap(), "whisper");
        assert_eq!(
            form("Multipart/Form-Data; charset=x; boundary=\"XY\"", body).unwrap(),
            "whisper"
        );
    }

    #[test]
    fn a_form_that_is_none_is_told_so() {
        for (kind, body) in [
            ("multipart/form-data", &b"--XY--"[..]),
            ("multipart/form-data; boundary=XY", b""),
            ("multipart/form-data; boundary=XY", b"--XY"),
            ("multipart/form-data; boundary=XY", b"--XY--"),
            ("multipart/form-data; boundary=XY", b"--XY\r\n\r\n\r\n--XY--"),
            (
                "multipart/form-data; boundary=XY",
                b"--XY\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nno end",
            ),
            (
                "multipart/form-data; boundary=XY",
                b"--XY\r\nContent-Disposition: form-data; name=\"model\"; filename=\"m\"\r\n\r\nx\r\n--XY--",
            ),
        ] {
            assert_eq!(
                form(kind, body).unwrap_err().status,
                StatusCode::BAD_REQUEST,
                "{kind} {body:?}"
            );
        }
    }
}
