//! munge: who somebody on another node is. `libmunge.so.2` behind a typed door.
//!
//! The library is opened at run time, so that one build runs on a node without munge (there TCP is off).
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use libloading::Library;

/// Why a credential could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum MungeError {
    /// No library.
    #[error(
        "libmunge.so.2 cannot be loaded ({0}); install libmunge2, or turn TCP off with agent.listen = \"\""
    )]
    Library(String),
    /// munge says no.
    #[error("munge: {0}; is munged running, and do the nodes share key and clock?")]
    Refused(String),
}

/// A credential that munge found good: made by `uid` on a node that shares our key, not replayed, not expired.
#[derive(Debug, Clone)]
pub struct Decoded {
    /// Who made it.
    pub uid: u32,
    /// With which primary group.
    pub gid: u32,
    /// What it says.
    pub payload: Vec<u8>,
}

impl Decoded {
    /// The payload as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }
}

/// 32 hex digits that were never used before.
pub fn nonce() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// What a call's credential must say (see `catalog.proto`).
pub fn call_payload(method: &str, node: &str, nonce: &str) -> String {
    format!("{method}\n{node}\n{nonce}\n")
}

/// What the answer's credential must say.
pub fn proof_payload(nonce: &str) -> String {
    format!("PROOF\n{nonce}\n")
}

/// Makes a credential of this process; only `readable_by` (a uid) can decode it.
pub async fn encode(payload: impl Into<Vec<u8>>, readable_by: Option<u32>) -> Result<String, MungeError> {
    let payload = payload.into();
    blocking(move || encode_blocking(&payload, readable_by)).await
}

/// Reads a credential; munge accepts each one once on a node.
pub async fn decode(credential: String) -> Result<Decoded, MungeError> {
    blocking(move || decode_blocking(&credential)).await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, MungeError> + Send + 'static,
) -> Result<T, MungeError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|e| Err(MungeError::Refused(e.to_string())))
}

// === libmunge ===

type Context = *mut c_void;

/// `MUNGE_OPT_UID_RESTRICTION` of munge.h.
const OPT_UID_RESTRICTION: c_int = 9;
/// `MUNGE_OPT_CIPHER_TYPE`; the default may be "none" on a site, and keys must be encrypted.
const OPT_CIPHER_TYPE: c_int = 0;
/// `MUNGE_CIPHER_AES128`.
const CIPHER_AES128: c_int = 4;

struct Munge {
    ctx_create: unsafe extern "C" fn() -> Context,
    ctx_destroy: unsafe extern "C" fn(Context),
    ctx_set: unsafe extern "C" fn(Context, c_int, ...) -> c_int,
    encode: unsafe extern "C" fn(*mut *mut c_char, Context, *const c_void, c_int) -> c_int,
    decode: unsafe extern "C" fn(
        *const c_char,
        Context,
        *mut *mut c_void,
        *mut c_int,
        *mut u32,
        *mut u32,
    ) -> c_int,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    _library: Library,
}

fn library() -> Result<&'static Munge, MungeError> {
    static MUNGE: OnceLock<Result<Munge, String>> = OnceLock::new();
    MUNGE
        .get_or_init(|| load().map_err(|e| e.to_string()))
        .as_ref()
        .map_err(|e| MungeError::Library(e.clone()))
}

fn load() -> Result<Munge, libloading::Error> {
    // SAFETY: libmunge has no constructors that touch our state; the types below are those of munge.h (0.5.x, stable ABI
    // of soname 2), and the library is kept for the life of the process beside the pointers taken from it.
    unsafe {
        let library = Library::new("libmunge.so.2")?;
        Ok(Munge {
            ctx_create: *library.get(b"munge_ctx_create\0")?,
            ctx_destroy: *library.get(b"munge_ctx_destroy\0")?,
            ctx_set: *library.get(b"munge_ctx_set\0")?,
            encode: *library.get(b"munge_encode\0")?,
            decode: *library.get(b"munge_decode\0")?,
            strerror: *library.get(b"munge_strerror\0")?,
            _library: library,
        })
    }
}

impl Munge {
    fn check(&self, code: c_int) -> Result<(), MungeError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: munge_strerror returns a static string for any code.
        let text = unsafe { CStr::from_ptr((self.strerror)(code)) };
        Err(MungeError::Refused(text.to_string_lossy().into_owned()))
    }
}

fn encode_blocking(payload: &[u8], readable_by: Option<u32>) -> Result<String, MungeError> {
    let munge = library()?;
    let length =
        c_int::try_from(payload.len()).map_err(|_| MungeError::Refused("payload too long".into()))?;
    // SAFETY: the context lives until ctx_destroy; ctx_set takes an int resp. a uid_t after these two options (munge.h);
    // encode reads `length` bytes of `payload` and hands over a malloc'ed string, freed below.
    unsafe {
        let context = (munge.ctx_create)();
        if context.is_null() {
            return Err(MungeError::Refused("out of memory".into()));
        }
        let mut text: *mut c_char = std::ptr::null_mut();
        let result = (|| {
            munge.check((munge.ctx_set)(context, OPT_CIPHER_TYPE, CIPHER_AES128))?;
            if let Some(uid) = readable_by {
                munge.check((munge.ctx_set)(context, OPT_UID_RESTRICTION, uid))?;
            }
            munge.check((munge.encode)(
                &mut text,
                context,
                payload.as_ptr().cast(),
                length,
            ))?;
            Ok(CStr::from_ptr(text).to_string_lossy().into_owned())
        })();
        libc::free(text.cast());
        (munge.ctx_destroy)(context);
        result
    }
}

fn decode_blocking(credential: &str) -> Result<Decoded, MungeError> {
    let munge = library()?;
    let text = CString::new(credential).map_err(|_| MungeError::Refused("a NUL in the credential".into()))?;
    let (mut data, mut length) = (std::ptr::null_mut::<c_void>(), 0);
    let (mut uid, mut gid) = (u32::MAX, u32::MAX);
    // SAFETY: a null context means defaults; on success, and on some failures, `data` is a malloc'ed buffer of `length` bytes.
    unsafe {
        let code = (munge.decode)(
            text.as_ptr(),
            std::ptr::null_mut(),
            &mut data,
            &mut length,
            &mut uid,
            &mut gid,
        );
        let length = usize::try_from(length).unwrap_or(0);
        let payload = match data.is_null() {
            true => Vec::new(),
            false => std::slice::from_raw_parts(data.cast::<u8>(), length).to_vec(),
        };
        libc::free(data);
        munge.check(code)?;
        Ok(Decoded { uid, gid, payload })
    }
}
