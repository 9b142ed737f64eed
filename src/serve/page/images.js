// Pictures and files that are pasted or dropped: no model here reads them, and the user hears so.
function refuseFile(file) {
  tell(file?.type.startsWith("image/")
    ? "Models here read text only, so the picture was left out. Please say in words what it shows."
    : "Files are not read here, so this one was left out. Please paste its text instead.");
  byId("message").focus();
}

function refuseFiles() {
  document.addEventListener("paste", (event) => {
    const files = event.clipboardData?.files ?? [];
    if (files.length === 0) return;
    // Text that is copied with its picture goes in as text.
    if (!event.clipboardData.getData("text/plain")) event.preventDefault();
    refuseFile(files[0]);
  });
  for (const name of ["dragenter", "dragover", "drop"])
    document.addEventListener(name, (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      if (name === "drop") refuseFile(event.dataTransfer.files[0]);
      else event.dataTransfer.dropEffect = "copy";
    });
}

